"""Whether the times of live batches call for new control tables, or for measuring the model again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import hypot
from statistics import fmean, median

from app.scheduler.estimates.curve import Estimate, drawn
from app.scheduler.estimates.latency import LiveTimes
from app.scheduler.estimates.profile import ModelProfile

_MOVED = 2.0  # standard errors by which a size must change, for tables to be solved again
_SURER = 0.5  # or its error must fall to this part of the old one
_CONTRADICTED = 4.0  # standard errors between a size's profile and its live batches
_BENDS = 0.1  # and as a share of the time: ratios between sizes change a little under load
_ENOUGH = 16  # live batches of a size that contradict its profile
_SLOWER = 0.1  # or the slowdown by other batches must change by this share
_BESIDE = 32.0  # with so many live batches beside others
#: Time between two solutions, doubled each time: a solution takes a second of a core, which busy models may need.
_FIRST_NS, _LONGEST_NS = 10_000_000_000, 3_600_000_000_000


class Review:
    """Compares a model's profile with its live batches. Solving tables takes a second, so it is rarely asked for."""

    def __init__(self, profile: ModelProfile, now: int, workers: int = 1) -> None:
        if workers > 1 and not profile.concurrency_ns:
            profile = replace(profile, concurrency_ns={workers: profile.batch_ns})
        self._profile = profile
        self._used = (1.0,) * profile.max_batch, profile.errors
        self._slowdown = 1.0  # in use, over the profile's
        self._gap_ns = _FIRST_NS
        self._due = now + _FIRST_NS

    def corrected(self, live: Sequence[LiveTimes], now: int) -> ModelProfile | None:
        """The profile corrected by live batches; None if it has hardly changed, or the tables are too recent.

        `live`: the times of each stage.
        """
        if now < self._due or not self._profile.errors:
            return None
        factors, errors = _whole(self._profile, live)
        pairs = zip(factors, self._used[0], errors, self._used[1], strict=True)
        slowdown = fmean(one.shared.factor for one in live)
        slower = abs(slowdown / self._slowdown - 1) > _SLOWER and min(one.shared.seen for one in live) > _BESIDE
        if not slower and not any(
            abs(one / old - 1) > _MOVED * error or error < _SURER * was for one, old, error, was in pairs
        ):
            return None
        self._used, self._slowdown = (factors, errors), slowdown
        self._gap_ns = min(2 * self._gap_ns, _LONGEST_NS)
        self._due = now + self._gap_ns
        return _times(self._profile, live, factors, errors, slowdown)

    def contradicted(self, live: Sequence[LiveTimes]) -> bool:
        """Whether live batches of some size differ from the profile by more than both errors and a common factor."""
        factors, errors = _whole(self._profile, live)
        seen = [size for size in range(len(factors)) if all(one.seen[size] >= _ENOUGH for one in live)]
        common = median([factors[size] for size in seen] or [1.0])
        return any(
            abs(factors[size] / common - 1) > _BENDS + _CONTRADICTED * hypot(errors[size], self._profile.errors[size])
            for size in seen
        )


def _whole(profile: ModelProfile, live: Sequence[LiveTimes]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """By size, for all stages together: live time over profiled time, and the standard error."""
    errors = tuple(map(max, zip(*(one.errors() for one in live), strict=True)))
    if len(live) == 1:
        return tuple(live[0].factors), errors
    parts = [part.batch_ns for part in profile.parts]
    times = [sum(part[size] for part in parts) for size in range(profile.max_batch)]
    sums = [
        sum(part[size] * one.factors[size] for part, one in zip(parts, live, strict=True)) for size in range(len(times))
    ]
    return tuple(now / before for now, before in zip(sums, times, strict=True)), errors


def _times(
    profile: ModelProfile, live: Sequence[LiveTimes], factors: Sequence[float], errors: tuple[float, ...],
    slowdown: float,
) -> ModelProfile:  # fmt: skip
    stages = tuple(
        replace(stage, batch_ns=_drawn(stage.batch_ns, one.factors, errors))
        for stage, one in zip(profile.stages, live, strict=False)
    )
    slower = [factor * slowdown for factor in factors]
    together = {units: _drawn(times, slower, errors) for units, times in profile.concurrency_ns.items()}
    return replace(
        profile,
        batch_ns=_drawn(profile.batch_ns, factors, errors), concurrency_ns=together, stages=stages, errors=errors,
    )  # fmt: skip


def _drawn(times: Sequence[int], factors: Sequence[float], errors: Sequence[float]) -> tuple[int, ...]:
    known = {
        size: Estimate(time * factor, error)
        for size, (time, factor, error) in enumerate(zip(times, factors, errors, strict=True), 1)
    }
    return tuple(max(1, round(time)) for time in drawn(known).values())
