"""The result of `starling size`: a table and the command to paste, or the same as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.commands.output import serve_flags, tabulated

if TYPE_CHECKING:
    from planner.commands.size_profiles import HttpCost, SizedModel
    from planner.fleet import Setup
    from planner.sizing import LatencyEstimate

_MS = 1e6
_COLUMNS = (
    ("replicas", "replicas", "d"), ("rate/s", "rate", "g"), ("load", "load", ".2f"), ("p50 ms", "p50_ms", ".1f"),
    ("p99 ms", "p99_ms", ".1f"), ("least of runs", "p99_least_ms", ".1f"), ("busy", "busy", ".0%"),
    ("HTTP", "http_busy", ".0%"), ("batch", "mean_batch", ".1f"), ("refused", "refused", ".1%"),
)  # fmt: skip
NOT_COUNTED = "ingress, network, TLS, start-up, and whatever else runs on the machines"


@dataclass(frozen=True, slots=True)
class Goal:
    """`headroom`: the share of `rate` that must fit on top. `most`: the most replicas to consider."""

    rate: float
    p99_ns: float
    headroom: float
    most: int

    @property
    def sized_rate(self) -> float:
        return self.rate * (1 + self.headroom)


@dataclass(frozen=True, slots=True)
class SizingResult:
    """The fewest replicas of a configuration that reach the goal; None: no number does.

    `at`: estimates for that many replicas, at the rate and at the rate with headroom, then for one less. `most_rate`:
    the largest rate at which they keep the objective. `if_http_doubles`: the estimate at the rate if requests cost HTTP
    twice the assumed time; None if the cost was measured or given. `error`: the share by which batch times may be off,
    `if_off`: the estimates at the rate if they are, less and more; () if the profile has no errors.
    """

    setup: Setup
    replicas: int | None
    at: tuple[LatencyEstimate, ...] = ()
    most_rate: float = 0.0
    if_http_doubles: LatencyEstimate | None = None
    error: float = 0.0
    if_off: tuple[LatencyEstimate, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The question and the result of `starling size`. `policy`: as given, or ""."""

    goal: Goal
    subject: SizedModel
    http: HttpCost
    found: SizingResult
    policy: str = ""

    def as_text(self) -> str:
        from planner import sizing

        goal, found, setup, http = self.goal, self.found, self.found.setup, self.http
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
        if found.replicas is None:
            return "\n".join([*lines, _why_not(found, goal)])
        lines += [*tabulated(_COLUMNS, [_figures(one, goal) for one in found.at]), "", *_verdicts(found, goal)]
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
        """The same for JSON. Figures of an overloaded system are None."""
        from planner import sizing

        goal, found, setup = self.goal, self.found, self.found.setup
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
            "replicas": found.replicas,
            "threads": setup.profile.threads,
            "workers": list(setup.workers),
        }
        if found.replicas is not None:
            answer |= {
                "command": self._command(),
                "most_rate": found.most_rate,
                "margin": found.most_rate / goal.rate - 1,
                "predicted": [_figures(one, goal) for one in found.at if one.replicas == found.replicas],
                "if_http_doubles": None if found.if_http_doubles is None else _figures(found.if_http_doubles, goal),
                "error": found.error,
                "if_off": [_figures(one, goal) for one in found.if_off],
                "one_less": [_figures(one, goal) for one in found.at if one.replicas != found.replicas],
            }
        return answer

    def _command(self) -> str:
        """The command that serves one replica."""
        profile, workers = self.found.setup.profile, self.found.setup.workers
        threads = None if profile.device.startswith("cuda") else profile.threads
        flags = serve_flags(threads, workers)
        return f"{self.subject.serve} {flags}" + (f" --policy {self.policy}" if self.policy else "")


def _figures(one: LatencyEstimate, goal: Goal) -> dict[str, Any]:
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


def _verdicts(found: SizingResult, goal: Goal) -> list[str]:
    assert found.replicas is not None
    keeps = f"{_count(found.replicas)} keep{'s' * (found.replicas == 1)} {goal.p99_ns / _MS:g} ms"
    lines = [
        f"{keeps} up to about {found.most_rate:.0f}/s: {found.most_rate / goal.rate - 1:.0%} above {goal.rate:g}/s"
    ]
    if found.if_http_doubles is not None:
        lines.append(f"if requests cost HTTP twice what is assumed: {_p99(found.if_http_doubles)} at {goal.rate:g}/s")
    if found.if_off:
        low, high = map(_p99, found.if_off)
        lines.append(f"batch times are known to {found.error:.1%}: {low} to {high} at {goal.rate:g}/s")
    less = [one for one in found.at if one.replicas != found.replicas]
    if less:
        plain, sized = less
        lines.append(
            f"{_count(less[0].replicas)}: {_verdict(plain, goal)} at {plain.rate:g}/s, {_verdict(sized, goal)} at "
            f"{sized.rate:g}/s"
        )
    return lines


def _p99(one: LatencyEstimate) -> str:
    return "overloaded" if one.load >= 1 else f"p99 {_ms(one.p99_ns[-1])} ms"


def _verdict(one: LatencyEstimate, goal: Goal) -> str:
    if one.load >= 1:
        return "overloaded: the queue grows without end"
    return "enough" if one.keeps(goal.p99_ns) else "too slow"


def _why_not(found: SizingResult, goal: Goal) -> str:
    from planner import sizing

    if not sizing.keeps_alone(found.setup, goal.p99_ns, sizing.Runs()):
        return f"no number of replicas keeps {goal.p99_ns / _MS:g} ms: a request alone takes longer"
    return f"more than {goal.most} replicas are needed"


def _confidence() -> float:
    """The probability that the greatest of the runs is above their median."""
    from planner import sizing

    return 1 - 0.5**sizing.RUNS


def _service(service: str) -> str:
    kind, _, variation = service.partition(":")
    return f"that vary by {float(variation):.1%}" if kind == "gamma" else service


def _front(http: HttpCost) -> str:
    """The cost of requests of this format, as a line."""
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
