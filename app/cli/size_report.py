"""What `starling size` finds and prints: a table and the command to paste, or the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.cli.output import serve_flags

if TYPE_CHECKING:
    from app.cli.size_profiles import HttpCost, Subject
    from app.engine.profiling.sizing import Size
    from app.sim.fleet import Setup
    from app.sim.sizing import Estimate

_MS = 1e6
NOT_COUNTED = "ingress, network, TLS, start-up, and whatever else runs on the machines"


@dataclass(frozen=True, slots=True)
class Goal:
    """`headroom`: the share of `rate` that must fit on top. `most`: replicas to consider."""

    rate: float
    p99_ns: float
    headroom: float
    most: int

    @property
    def sized_rate(self) -> float:
        return self.rate * (1 + self.headroom)


@dataclass(frozen=True, slots=True)
class Sized:
    """A configuration, and the fewest replicas of it that reach the goal; None: no number does.

    `at`: what that many make of the rate and of the rate with headroom, then what one less makes of them.
    `most_rate`: the largest rate that they keep the objective at. `dearer`: what they make of the rate if requests cost
    HTTP twice what is assumed; None where that was measured or given.
    """

    setup: Setup
    replicas: int | None
    at: tuple[Estimate, ...] = ()
    most_rate: float = 0.0
    dearer: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was asked for, and what was found: `compared`, every configuration that was tried, and the `best` of them.

    `best` is None where no number of replicas is enough. `policy`: as given, or empty. `suggested`: by the profile.
    """

    goal: Goal
    subject: Subject
    http: HttpCost
    compared: Sequence[Sized]
    best: Sized | None
    policy: str = ""
    suggested: Size | None = None

    @property
    def setup(self) -> Setup:
        return (self.best or self.compared[0]).setup

    def as_text(self) -> str:
        from app.sim import sizing

        goal, setup, http, best = self.goal, self.setup, self.http, self.best
        profile = setup.profile
        made = f", profile of {profile.extra['made']}" if "made" in profile.extra else ""
        lines = [
            f"{self.subject.name or 'a model'} on {profile.device or 'a device'}{made}",
            f"{goal.rate:g} requests/s, {setup.arrivals}; 99 % within {goal.p99_ns / _MS:g} ms, also of "
            f"{goal.sized_rate:g}/s ({goal.headroom:.0%} more)",
            _front(http),
            f"policy {setup.policy}, batch times {_service(setup.service)}, router {setup.router}",
            "",
        ]
        if best is None:
            return "\n".join([*lines, *(f"{_name(one.setup)}: {_why_not(one, goal)}" for one in self.compared)])
        lines += [*_table(best), "", *_verdicts(best, goal)]
        for one in self.compared:
            if one.setup != best.setup:
                needed = _why_not(one, goal) if one.replicas is None else _count(one.replicas)
                lines.append(f"with {_name(one.setup)}: {needed}")
        lines += [
            "",
            "each replica:",
            f"  {self._command()}",
            "",
            f"p99 ms is the greatest of {sizing.RUNS} independent runs of {setup.requests:,} requests; the median run",
            f"is below it with {_confidence():.1%}. It is the simulator's, and as true as the profile.",
            f"Not counted: {NOT_COUNTED}.",
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON; None where it never settles."""
        from app.sim import sizing

        goal, setup, best = self.goal, self.setup, self.best
        answer: dict[str, Any] = {
            "model": self.subject.name,
            "device": setup.profile.device,
            "profile_made": setup.profile.extra.get("made"),
            "rate": goal.rate,
            "p99_ms": goal.p99_ns / _MS,
            "headroom": goal.headroom,
            "arrivals": setup.arrivals,
            "router": setup.router,
            "policy": setup.policy,
            "service": setup.service,
            "format": self.http.format,
            "http": {**self.http.costs.to_dict(), "source": self.http.source},
            "runs": sizing.RUNS,
            "requests_per_run": setup.requests,
            "confidence": _confidence(),
            "not_counted": NOT_COUNTED,
            "replicas": None if best is None else best.replicas,
            "compared": [
                {"threads": one.setup.profile.threads, "workers": list(one.setup.workers), "replicas": one.replicas}
                for one in self.compared
            ],
        }
        if best is not None:
            answer |= {
                "threads": best.setup.profile.threads,
                "workers": list(best.setup.workers),
                "command": self._command(),
                "most_rate": best.most_rate,
                "margin": best.most_rate / goal.rate - 1,
                "predicted": [_figures(one, goal) for one in best.at if one.replicas == best.replicas],
                "if_http_doubles": None if best.dearer is None else _figures(best.dearer, goal),
                "one_less": [_figures(one, goal) for one in best.at if one.replicas != best.replicas],
            }
        return answer

    def _command(self) -> str:
        """The line that serves one replica."""
        profile, workers = self.setup.profile, self.setup.workers
        threads = None if profile.device.startswith("cuda") else profile.threads
        alive = self.suggested.max_alive if self.suggested and is_suggested(self.setup, self.suggested) else None
        flags = serve_flags(threads, workers, alive)
        return f"{self.subject.serve} {flags}" + (f" --policy {self.policy}" if self.policy else "")


def is_suggested(setup: Setup, suggested: Size | None) -> bool:
    """Whether it has the threads and workers that `starling profile` suggests."""
    return suggested is not None and (setup.profile.threads or 1, setup.workers) == (
        suggested.threads, suggested.workers
    )  # fmt: skip


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


def _table(best: Sized) -> list[str]:
    from app.sim.report import aligned

    rows = [["replicas", "rate/s", "load", "p50 ms", "p99 ms", "of runs", "busy", "HTTP", "batch", "refused"]]
    for one in best.at:
        figures = ["-"] * 7
        if one.load < 1:
            figures = [
                _ms(one.p50_ns), _ms(one.p99_ns[-1]), f"{_ms(one.p99_ns[0])}-{_ms(one.p99_ns[-1])}", f"{one.busy:.0%}",
                f"{one.http:.0%}", f"{one.mean_batch:.1f}", f"{one.refused:.1%}",
            ]  # fmt: skip
        rows.append([str(one.replicas), f"{one.rate:g}", f"{one.load:.2f}", *figures])
    return aligned(rows)


def _verdicts(best: Sized, goal: Goal) -> list[str]:
    assert best.replicas is not None
    keeps = f"{_count(best.replicas)} keep{'s' * (best.replicas == 1)} {goal.p99_ns / _MS:g} ms"
    lines = [f"{keeps} up to about {best.most_rate:.0f}/s: {best.most_rate / goal.rate - 1:.0%} above {goal.rate:g}/s"]
    if best.dearer is not None:
        latency = "overloaded" if best.dearer.load >= 1 else f"p99 {_ms(best.dearer.p99_ns[-1])} ms"
        lines.append(f"if requests cost HTTP twice what is assumed: {latency} at {goal.rate:g}/s")
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


def _why_not(found: Sized, goal: Goal) -> str:
    from app.sim import sizing

    if not sizing.keeps_alone(found.setup, goal.p99_ns):
        return f"no number of replicas keeps {goal.p99_ns / _MS:g} ms: a request alone takes longer"
    return f"more than {goal.most} replicas are needed"


def _confidence() -> float:
    """The probability that the greatest of the runs is above their median."""
    from app.sim import sizing

    return 1 - 0.5**sizing.RUNS


def _name(setup: Setup) -> str:
    threads = setup.profile.threads or 1
    return f"{threads} thread{'s' * (threads > 1)} x {len(setup.workers)} worker{'s' * (len(setup.workers) > 1)}"


def _service(service: str) -> str:
    kind, _, variation = service.partition(":")
    return f"that vary by {float(variation):.1%}" if kind == "gamma" else service


def _front(http: HttpCost) -> str:
    """What requests of the format cost HTTP."""
    costs = http.costs
    line = f"requests as {http.format}: {costs.call_ns / 1e3:.0f} us of the event loop each, "
    line += f"{costs.batch_ns / 1e3:.0f} a batch"
    if costs.aside:
        line += f", {(costs.decode_ns + costs.group_ns) / 1e3:.0f} of a helper thread"
    return line + (", assumed; --measure measures them" if http.source == "assumed" else f", {http.source}")


def _count(replicas: int) -> str:
    return f"{replicas} replica{'s' * (replicas > 1)}"


def _ms(value: float) -> str:
    return f"{value / _MS:.1f}" if math.isfinite(value) else "-"


def _finite(value: float) -> float | None:
    return value / _MS if math.isfinite(value) else None
