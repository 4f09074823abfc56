"""What was measured of a model beside no calls, and the profile that follows (docs/theory/estimates.md).

Warm-up, idle measurements and `starling profile` give evidence of one form. The times of each group of points are
observations of a `Curve`, as those of live batches are; for a model in stages each stage has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import sqrt
from statistics import median
from typing import Any, NamedTuple

from app.scheduler.estimates.curve import STEADY, Curve
from app.scheduler.estimates.profile import Profile, interpolate
from app.scheduler.estimates.smooth import ONCE, Estimate, drawn, known_errors

#: Ordinary batches that one counts as: of a warm-up, beside whatever ran then, which gives an error of about `ONCE`;
#: and one beside no calls.
WARM_UP, IDLE = 1 / 6, 4.0
_UNKNOWN = 1e4  # error of a size before its first batch: what was known before only gives the shape of the curve


class Point(NamedTuple):
    """What is timed: units at once, rows in each, and the length of the rows; 0: their own length."""

    units: int
    size: int
    length: int = 0

    @property
    def group(self) -> tuple[int, int]:
        """Points of one group make one curve."""
        return self.units, self.length


class UnitTime(NamedTuple):
    """Nanoseconds of a unit, and of each stage of a model in stages."""

    ns: int
    by_stage: tuple[int, ...] = ()

    @classmethod
    def median(cls, timed: Iterable[UnitTime]) -> UnitTime:
        """Of units that ran at once or one after another, also by stage."""
        whole, by_stage = zip(*timed, strict=True)
        return cls(_middle(whole), tuple(map(_middle, zip(*by_stage, strict=True))))


class Evidence:
    """Times by point. `prior`: the shape of the curve where nothing has been measured. `counts`: batches by point."""

    def __init__(self, prior: Profile) -> None:
        self.counts: dict[Point, int] = {}
        self._prior = prior
        self._curves: dict[tuple[int, int], list[Curve]] = {}  # by group: of the whole, then of each stage

    def add(self, point: Point, took: UnitTime, trust: float) -> None:
        """A batch of this point has taken so long. `trust`: as of `Curve.observe`."""
        self.counts[point] = self.counts.get(point, 0) + 1
        if point.group not in self._curves:
            self._curves[point.group] = self._begun(point, took)
        for curve, ns in zip(self._curves[point.group], (took.ns, *took.by_stage), strict=True):
            curve.observe(point.size, ns, trust=trust)

    def _begun(self, point: Point, took: UnitTime) -> list[Curve]:
        """Curves that follow the prior, scaled to meet the first time."""
        count = len(took.by_stage)
        errors = (_UNKNOWN,) * self._prior.max_batch
        return [
            Curve(Profile(shape, errors=errors).scaled(ns / shape[point.size - 1]), doubt=STEADY)
            for shape, ns in zip(map(self._shape, range(count + 1)), (took.ns, *took.by_stage), strict=True)
        ]

    def _shape(self, part: int) -> tuple[int, ...]:
        """The prior's times. `part`: 0 for the whole, 1 for the first stage."""
        stages = self._prior.stages
        return stages[part - 1].batch_ns if 0 < part <= len(stages) else self._prior.batch_ns

    def error(self, point: Point) -> float:
        """The standard error of a point's time as a share of it; 0 before its first batch."""
        return self._curves[point.group][0].error(point.size) if point in self.counts else 0.0

    def expected(self, point: Point) -> int:
        """An upper bound of the nanoseconds of a batch, from the next smaller one of its group; 0 if there is none."""
        table = self.table(*point.group)
        size = max((size for size in table if size <= point.size), default=0)
        return table[size] * point.size // size if size else 0

    def table(self, units: int, length: int = 0, part: int = 0) -> dict[int, int]:
        """Nanoseconds by timed size while `units` ran at once, smoothed where differences are not significant."""
        known = self._estimates(units, length, part)
        return {size: max(1, round(ns)) for size, ns in drawn(known).items()}

    def _estimates(self, units: int, length: int = 0, part: int = 0) -> dict[int, Estimate]:
        if (units, length) not in self._curves:
            return {}
        curve = self._curves[units, length][part]
        sizes = (point.size for point in self.counts if point.group == (units, length))
        times, scale = curve.batch_ns, curve.speed.scale
        return {size: Estimate(times[size - 1] * scale, curve.error(size)) for size in sizes}

    def profile(self, length: int = 0, *, cell: bool = False, written: int = 0, **extra: Any) -> Profile:
        """The times as a profile; `extra` are its other keys. `length`: the rows' own length, if lengths vary.

        `cell`: the only stage is a step of a recurrent model, which takes the same time at any length. A step of a
        decoder does not: it also reads the `written` tokens that its rows had on average.

        Sizes that were not timed are interpolated. Beyond the largest timed size the curve follows the prior, scaled to
        meet it; at another length it follows the curve of the rows' own length. Left out are numbers of units at once
        without both ends of the curve, and lengths without size 1. Raises ValueError if size 1 was not timed alone.
        """
        whole, *stages = (self._timed(part, length) for part in range(len(self._curves.get((1, 0), [None]))))
        if cell:
            stages = [replace(one, cell=True, by_length=_behind(one.by_length, written)) for one in stages]
        known = {size: round(one.error, 4) for size, one in self._estimates(1).items()}
        last = max(known)
        beyond = dict.fromkeys(range(last + 1, whole.max_batch + 1), ONCE)
        noise = self._curves[1, 0][0].speed.noise
        repeats = {str(one.size): count for one, count in self.counts.items() if one.group == (1, 0)}
        return replace(
            whole,
            stages=tuple(stages),
            errors=known_errors({**known, **beyond}, whole.max_batch),
            extra={**extra, "noise": round(sqrt(noise), 4), "repeats": repeats},
        )

    def _timed(self, part: int, length: int) -> Profile:
        """The curves of the whole model, or of one stage."""
        alone = _extended(self.table(1, part=part), self._shape(part))
        most = len(alone)
        by_length = {one.length: self.table(1, one.length, part) for one in self.counts if one.length}
        curves = {other: _extended(table, alone) for other, table in by_length.items() if 1 in table}
        if length:
            curves[length] = alone
        at_once = {one.units: self.table(one.units, part=part) for one in self.counts if one.units > 1}
        return Profile(
            alone,
            {units: _filled(table, most) for units, table in sorted(at_once.items()) if {1, most} <= table.keys()},
            tuple(sorted(curves.items())),
        )


def _behind(
    by_length: tuple[tuple[int, tuple[int, ...]], ...], written: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """A decoder's times by tokens read and written, from those by tokens read; nothing for other models."""
    return tuple((read + written, times) for read, times in by_length) if written else ()


def _extended(table: Mapping[int, int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The times of all sizes; beyond the largest of the table they follow `shape`, scaled to meet it.

    Raises ValueError if size 1 is not in the table.
    """
    last = max(table, default=0)
    if 1 not in table:
        raise ValueError(f"sizes: expected a time of 1 row, got those of {sorted(table)}")
    beyond = {size: shape[size - 1] * table[last] / shape[last - 1] for size in range(last + 1, len(shape) + 1)}
    return _filled({**table, **beyond}, max(last, len(shape)))


def _filled(table: Mapping[int, float], most: int) -> tuple[int, ...]:
    return tuple(max(1, round(ns)) for ns in interpolate(table, range(1, most + 1)))


def _middle(times: Iterable[int]) -> int:
    return max(1, round(median(times)))
