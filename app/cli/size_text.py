"""What `starling size` prints: a table and the command to paste, or the same as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from app.sim import sizing
from app.sim.sizing import Estimate

if TYPE_CHECKING:
    from app.cli.size_plan import Asked, Found, Goal
    from app.sim.fleet import Setup

_MS = 1e6
NOT_COUNTED = "ingress, network, TLS, start-up, and whatever else runs on the machines"


def command(setup: Setup, asked: Asked) -> str:
    """The line that serves one replica."""
    profile, parts = setup.profile, [asked.subject.serve]
    if profile.threads is not None and not profile.device.startswith("cuda"):
        parts.append(f"--threads {profile.threads}")
    parts.append(f"--workers {','.join(map(str, setup.workers))}")
    if asked.policy:
        parts.append(f"--policy {asked.policy}")
    return " ".join(parts)


def text(best: Found | None, asked: Asked) -> str:
    """For people. `best`: None where no number of replicas is enough."""
    goal, setup = asked.goal, asked.found[0].setup if best is None else best.setup
    profile, http = setup.profile, asked.http
    made = profile.extra.get("made")
    made = f", profile of {profile.extra['made']}" if "made" in profile.extra else ""
    unmeasured = "; --measure measures it" if http.source == "assumed" else ""
    lines = [
        f"{asked.subject.name or 'a model'} on {profile.device or 'a device'}{made}",
        f"{goal.rate:g} requests/s, {setup.arrivals}; 99 % within {goal.p99_ns / _MS:g} ms, also of "
        f"{goal.sized_rate:g}/s ({goal.headroom:.0%} more)",
        f"HTTP {http.us:.0f} us a request, {http.source}{unmeasured}",
        f"policy {setup.policy}, batch times {_service(setup.service)}, router {setup.router}",
        "",
    ]
    if best is None:
        return "\n".join([*lines, *(f"{_name(one.setup)}: {_why_not(one, goal)}" for one in asked.found)])
    lines += [*_table(best), "", *_verdicts(best, goal)]
    for one in asked.found:
        if one.setup != best.setup:
            needed = _why_not(one, goal) if one.replicas is None else _count(one.replicas)
            lines.append(f"with {_name(one.setup)}: {needed}")
    return "\n".join(
        [
            *lines,
            "",
            "each replica:",
            f"  {command(best.setup, asked)}",
            "",
            f"p99 ms is the greatest of {sizing.RUNS} independent runs of {setup.requests:,} requests; the median run",
            f"is below it with {_sure():.1%}. It is the simulator's, and as true as the profile.",
            f"Not counted: {NOT_COUNTED}.",
        ]
    )


def told(best: Found | None, asked: Asked) -> dict[str, Any]:
    """The same for JSON; None stands for what never settles."""
    goal, setup = asked.goal, asked.found[0].setup if best is None else best.setup
    answer: dict[str, Any] = {
        "model": asked.subject.name,
        "device": setup.profile.device,
        "profile_made": setup.profile.extra.get("made"),
        "rate": goal.rate,
        "p99_ms": goal.p99_ns / _MS,
        "headroom": goal.headroom,
        "arrivals": setup.arrivals,
        "router": setup.router,
        "policy": setup.policy,
        "service": setup.service,
        "http_us": asked.http.us,
        "http_source": asked.http.source,
        "runs": sizing.RUNS,
        "requests_per_run": setup.requests,
        "confidence": _sure(),
        "not_counted": NOT_COUNTED,
        "replicas": None if best is None else best.replicas,
        "compared": [
            {"threads": one.setup.profile.threads, "workers": list(one.setup.workers), "replicas": one.replicas}
            for one in asked.found
        ],
    }
    if best is not None:
        answer |= {
            "threads": best.setup.profile.threads,
            "workers": list(best.setup.workers),
            "command": command(best.setup, asked),
            "most_rate": best.most_rate,
            "margin": best.most_rate / goal.rate - 1,
            "predicted": [_figures(one, goal) for one in best.at if one.replicas == best.replicas],
            "one_less": [_figures(one, goal) for one in best.at if one.replicas != best.replicas],
        }
    return answer


def _figures(one: Estimate, goal: Goal) -> dict[str, Any]:
    settles = one.load < 1
    return {
        "replicas": one.replicas,
        "rate": one.rate,
        "load": one.load,
        "keeps": one.keeps(goal.p99_ns),
        "p50_ms": _finite(one.p50_ns),
        "p99_ms": _finite(one.p99_ns[-1]),
        "p99_least_ms": _finite(one.p99_ns[0]),
        "p99_median_ms": _finite(one.median_ns),
        "busy": one.busy if settles else None,
        "http_busy": one.http if settles else None,
        "mean_batch": one.mean_batch if settles else None,
        "refused": one.refused if settles else None,
    }


def _table(best: Found) -> list[str]:
    rows = [["replicas", "rate/s", "load", "p50 ms", "p99 ms", "of runs", "busy", "HTTP", "batch", "refused"]]
    for one in best.at:
        figures = ["-"] * 7
        if one.load < 1:
            figures = [
                _ms(one.p50_ns), _ms(one.p99_ns[-1]), f"{_ms(one.p99_ns[0])}-{_ms(one.p99_ns[-1])}", f"{one.busy:.0%}",
                f"{one.http:.0%}", f"{one.mean_batch:.1f}", f"{one.refused:.1%}",
            ]  # fmt: skip
        rows.append([str(one.replicas), f"{one.rate:g}", f"{one.load:.2f}", *figures])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _verdicts(best: Found, goal: Goal) -> list[str]:
    assert best.replicas is not None
    keeps = f"{_count(best.replicas)} keep{'s' * (best.replicas == 1)} {goal.p99_ns / _MS:g} ms"
    lines = [f"{keeps} up to about {best.most_rate:.0f}/s: {best.most_rate / goal.rate - 1:.0%} above {goal.rate:g}/s"]
    less = [one for one in best.at if one.replicas != best.replicas]
    if less:
        plain, sized = less
        lines.append(
            f"{_count(less[0].replicas)}: {_verdict(plain, goal)} at {plain.rate:g}/s, {_verdict(sized, goal)} at "
            f"{sized.rate:g}/s"
        )
    return lines


def _verdict(one: Estimate, goal: Goal) -> str:
    if one.load >= 1:
        return "overloaded: the queue grows without end"
    return "enough" if one.keeps(goal.p99_ns) else "too slow"


def _why_not(found: Found, goal: Goal) -> str:
    if not sizing.keeps_alone(found.setup, goal.p99_ns):
        return f"no number of replicas keeps {goal.p99_ns / _MS:g} ms: a request alone takes longer"
    return f"more than {goal.most} replicas are needed"


def _sure() -> float:
    """How sure it is that the greatest of the runs is above their median."""
    return 1 - 0.5**sizing.RUNS


def _name(setup: Setup) -> str:
    threads = setup.profile.threads or 1
    return f"{threads} thread{'s' * (threads > 1)} x {len(setup.workers)} worker{'s' * (len(setup.workers) > 1)}"


def _service(service: str) -> str:
    kind, _, variation = service.partition(":")
    return f"that vary by {float(variation):.1%}" if kind == "gamma" else service


def _count(replicas: int) -> str:
    return f"{replicas} replica{'s' * (replicas > 1)}"


def _ms(value: float) -> str:
    return f"{value / _MS:.1f}" if math.isfinite(value) else "-"


def _finite(value: float) -> float | None:
    return value / _MS if math.isfinite(value) else None
