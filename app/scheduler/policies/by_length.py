"""Picks the rows of a unit if batch times depend on the longest row: the oldest row and others of similar length.

The first row in order of service is always in the unit, so no row waits for ever. The others are its neighbours in
order of length; of all units the one of the lowest cost per time is chosen (docs/theory/policies.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from app.scheduler.estimates.lengths import LengthTimes
from app.scheduler.rows.ready import LengthWindow

_FULLEST = 0.95  # highest load assumed: V grows without bound towards 1
_LOOKED_AT = 3  # windows tried of each size
_PLACES = 8  # windows of each size compared for the least padding
#: Numbers of rows tried for a unit.
_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def pick(
    window: LengthWindow, times: LengthTimes, waiting: float, most: int, rate: float, within: float = inf
) -> tuple[int, int]:
    """How many rows the next unit has, and how many of them are before the first row in order of length.

    `waiting`: rows waiting for this worker; `most`: the largest unit; `rate`: rows per ns that arrive for this worker;
    `within`: the most profiled time in nanoseconds that it may take, unless it is the first row alone.
    """
    lengths, place = window.lengths, window.place
    queue = _Queue(times, waiting, window.total / window.count, rate)
    sums = [0, *accumulate(lengths)]
    chosen, least = (1, 0), queue.cost(1, lengths[place], lengths[place])
    most = min(most, len(lengths))
    for size in (*_SIZES[: bisect_left(_SIZES, most)], most):  # `most` is often all waiting rows
        for first in _windows(lengths, sums, place, size):
            longest = lengths[first + size - 1]
            cost = queue.cost(size, longest, sums[first + size] - sums[first])
            if cost < least and times.at(longest).times[size - 1] <= within:
                least, chosen = cost, (size, place - first)
    return chosen


def _windows(lengths: Sequence[int], sums: Sequence[int], place: int, size: int) -> Sequence[int]:
    """Starts of windows of this size that contain `place`: the first, the last, and the one with the least padding."""
    low, high = max(0, place - size + 1), min(place, len(lengths) - size)
    if high - low < _LOOKED_AT:
        return range(low, high + 1)
    tried = range(low, high, max(1, (high - low) // _PLACES))
    tight = min(tried, key=lambda first: size * lengths[first + size - 1] - sums[first + size] + sums[first])
    return (low, high) if tight == low else (low, tight, high)


class _Queue:
    """The waiting rows, and the cost of running some of them first."""

    __slots__ = ("_all", "_load", "_mean", "_rate", "_times", "_waiting")

    def __init__(self, times: LengthTimes, waiting: float, mean: float, rate: float) -> None:
        self._times = times
        self._waiting = waiting
        self._mean = mean
        self._rate = rate
        self._load = min(_FULLEST, rate * times.at(round(mean)).least[-1])
        self._all = self._value(waiting, waiting * mean)

    def cost(self, size: int, longest: int, length: int) -> float:
        """The mean number of rows in the system during a unit of `size` rows, plus the growth of V per time.

        `length`: the sum of the lengths of its rows.
        """
        time = self._times.at(longest).times[size - 1]
        arriving = self._rate * time
        rest = self._value(self._waiting - size + arriving, (self._waiting + arriving) * self._mean - length)
        return self._waiting + arriving / 2 + (rest - self._all) / time

    def _value(self, rows: float, length: float) -> float:
        """V of so many rows, in rows x ns. `length`: the sum of their lengths."""
        if rows <= 0:
            return 0.0
        at = self._times.at(max(1, round(length / rows)))
        room = min(max(1, round(rows)), self._times.most) - 1
        work = rows * at.least[room]
        return work * (rows + at.best[room]) / 2 + self._rate * work * work / (2 * (1 - self._load))
