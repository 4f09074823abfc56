"""Batch times of rows that have a length: T(b, length), interpolated from a few measured lengths.

    by_length = ((16, times), (128, times))      times[b - 1]: nanoseconds of b rows whose longest has this length

Between two measured lengths times are interpolated linearly. Rows shorter than the shortest measured length count as
that long. Beyond the longest, time grows in proportion to the length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from app.scheduler.estimates.parts import padded

ByLength = Sequence[tuple[int, Sequence[float]]]

_EXACT = 64  # lengths below it are not rounded
_DOUBLES = 5  # of a length, where times are guessed
_ANY = 1 << 62  # as the only measured length: all rows are shorter, so all take the same time


def time_at(by_length: ByLength, size: int, length: int) -> float:
    """Nanoseconds of a batch of `size` whose longest row has this length. `by_length`: ascending, not empty."""
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


@dataclass(frozen=True, slots=True)
class AtLength:
    """Batch times at one length of the longest row, in nanoseconds. Index `size - 1`."""

    times: tuple[float, ...]  # made monotone by padding
    sizes: tuple[int, ...]  # the size at which so many rows are run
    least: tuple[float, ...]  # time per row in the best batch of up to so many rows
    best: tuple[int, ...]  # the size of that batch


class LengthTimes:
    """T(b, length) of a program from one of its stages to the end, cached by length.

    `parts`: the times by length of each of these stages. `extra_ns` is added to every time. Lengths are rounded up by
    at most a thirty-second, which bounds the cache.
    """

    __slots__ = ("_extra_ns", "_known", "_parts", "most")

    def __init__(self, parts: Sequence[ByLength], most: int, extra_ns: int = 0) -> None:
        self.most = most  # rows
        self._parts = parts
        self._extra_ns = extra_ns
        self._known: dict[int, AtLength] = {}

    def at(self, length: int) -> AtLength:
        length = rounded(length)
        known = self._known.get(length)
        if known is None:
            known = self._known[length] = self._made(length)
        return known

    def _made(self, length: int) -> AtLength:
        rows = range(1, self.most + 1)
        alone = tuple(self._extra_ns + sum(time_at(part, size, length) for part in self._parts) for size in rows)
        times, sizes = padded(alone)
        each = [time / size for size, time in enumerate(times, 1)]
        best = [1]
        for size in rows[1:]:
            best.append(size if each[size - 1] < each[best[-1] - 1] else best[-1])
        return AtLength(times, sizes, tuple(each[size - 1] for size in best), tuple(best))


def any_length(batch_ns: tuple[int, ...]) -> ByLength:
    """The times by length of a stage whose times do not depend on it."""
    return ((_ANY, batch_ns),)


def by_tokens(own: int, most: int, batch_ns: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """A guess from the times of rows `own` long: as many tokens take as long, in more rows or in longer ones.

    So a model that takes hardly longer for more rows is expected to take hardly longer for longer ones. The lengths are
    halves and doubles of `own` up to `most`; none where `own` is 0.
    """
    if not own:
        return ()
    times = tuple(batch_ns)

    def time(rows: float) -> int:
        below = max(1, int(rows))
        share = max(0.0, rows - below)
        return round(_of(times, below) * (1 - share) + _of(times, below + 1) * share)

    lengths = {own, most, *(own << power for power in range(_DOUBLES)), *(own >> power for power in range(_DOUBLES))}
    return tuple(
        (length, tuple(time(size * length / own) for size in range(1, len(times) + 1)))
        for length in sorted(lengths)
        if 0 < length <= most
    )


def rounded(length: int) -> int:
    """The length rounded up to six significant binary digits."""
    if length < _EXACT:
        return length
    step = length.bit_length() - 6
    return -(-length >> step) << step


def _length(entry: tuple[int, Sequence[float]]) -> int:
    return entry[0]


def _of(times: Sequence[float], size: int) -> float:
    """The time of a size; beyond the table, with the time per row of its last entry."""
    return times[size - 1] if size <= len(times) else times[-1] * size / len(times)
