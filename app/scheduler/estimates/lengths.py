"""Batch times of rows that have a length: T(b, length), measured for a few lengths.

    by_length = ((16, times), (128, times))      times[b - 1]: nanoseconds of b rows, the longest of them so long

Between two lengths measured the time lies on the line between theirs. Rows shorter than the shortest take as long as
that: below it nothing is known to be saved. Beyond the longest, time grows in proportion to the length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

ByLength = Sequence[tuple[int, tuple[int, ...]]]


def time_at(by_length: ByLength, size: int, length: int) -> float:
    """Nanoseconds of a batch of `size` whose longest row is so long. `by_length` ascending and not empty."""
    above = bisect_left(by_length, length, key=_length)
    if above == len(by_length):
        longest, times = by_length[-1]
        return _of(times, size) * length / longest
    upper, times = by_length[above]
    if upper == length or above == 0:
        return _of(times, size)
    lower, shorter = by_length[above - 1]
    share = (length - lower) / (upper - lower)
    return _of(shorter, size) * (1 - share) + _of(times, size) * share


def _length(entry: tuple[int, tuple[int, ...]]) -> int:
    return entry[0]


def _of(times: tuple[int, ...], size: int) -> float:
    """Beyond the table: the last entry's share per row."""
    return times[size - 1] if size <= len(times) else times[-1] * size / len(times)
