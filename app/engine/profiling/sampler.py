"""Chooses which batch to time next: the point whose time is known worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.scheduler.estimates.evidence import IDLE, Evidence, Point, UnitTime
from app.scheduler.estimates.profile import Profile

LEAST = 3  # batches of a point, at least; live batches correct the times later
_MOST = 20
_TOLERANCE = 0.02


class Sampler:
    """Points to time, and the evidence that has come of it. `prior`: what is known before.

    A point is settled when its error is within `_TOLERANCE` after at least LEAST batches, or after `_MOST`. In the
    first pass points are visited in the order given, which must go from small to large at each length, so that the time
    of each batch can be predicted from a smaller one.
    """

    def __init__(self, prior: Profile, wanted: Iterable[Point]) -> None:
        self.evidence = Evidence(prior)
        self._open = dict.fromkeys(wanted)

    def want(self, points: Iterable[Point]) -> None:
        """Time these points as well."""
        self._open |= dict.fromkeys(points)

    def add(self, point: Point, timed: Sequence[UnitTime]) -> None:
        """Batches of this point, as many as run at once there, have taken so long."""
        evidence = self.evidence
        evidence.add(point, UnitTime.median(timed), IDLE)
        count = evidence.counts[point]
        if (count >= LEAST and evidence.error(point) <= _TOLERANCE) or count >= _MOST:
            del self._open[point]

    def next(self) -> Point | None:
        """The next point, None when all are settled."""
        known = self.evidence
        return min(self._open, key=lambda point: (point in known.counts, -known.error(point)), default=None)

    def drop(self, point: Point) -> None:
        """Skip this point and all larger batches of its group."""
        self._open = {one: None for one in self._open if one.group != point.group or one.size < point.size}


def points(sizes: Iterable[int], levels: Iterable[int] = ()) -> list[Point]:
    """Points of each size alone, and with each number of units at once."""
    return [Point(units, size) for units in (1, *levels) for size in sizes]


def at_lengths(sizes: Iterable[int], lengths: Iterable[int]) -> list[Point]:
    """Points of each size alone, at each length."""
    return [Point(1, size, length) for length in lengths for size in sizes]


def size_sets(max_batch: int) -> list[list[int]]:
    """Sets of sizes to measure, from the finest to the coarsest: all, two an octave, one an octave."""
    octaves = {1 << power for power in range(max_batch.bit_length())}
    halves = {3 * size // 2 for size in octaves if size > 1 and 3 * size // 2 <= max_batch}
    return [list(range(1, max_batch + 1)), sorted(octaves | halves | {max_batch}), sorted(octaves | {max_batch})]


def length_sets(longest: int, own: int) -> list[list[int]]:
    """Sets of lengths to measure besides the rows' `own`, the finest first: halves, quarters, the longest.

    They go down to a sixteenth of the longest: shorter rows take about as long as that.
    """
    halves = [max(1, longest >> power) for power in (4, 3, 2, 1, 0)]
    return [sorted({*some} - {own}) for some in (halves, halves[::2], halves[-1:])]


def concurrency_levels(most: int) -> list[int]:
    """Numbers of units at once to measure: `most`, and powers of two below it. Those between are interpolated."""
    doubled = [1 << power for power in range(1, most.bit_length()) if 1 << power < most]
    return [*doubled, most] if most > 1 else []
