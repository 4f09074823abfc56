"""The fastest way to run rows: padded to a larger batch, in several units, or through several stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import TypeVar

Time = TypeVar("Time", int, float)


def padded(batch_ns: tuple[Time, ...]) -> tuple[tuple[Time, ...], tuple[int, ...]]:
    """The curve made monotone by padding: T'(b) = min over b' >= b of T(b'), and the size b' at which b rows then run.

    Measured curves have peaks that hardware sets (three rows can take longer than four); a batch may always be padded.
    """
    times, sizes = list(batch_ns), list(range(1, len(batch_ns) + 1))
    for index in range(len(times) - 2, -1, -1):
        if times[index + 1] < times[index]:
            times[index], sizes[index] = times[index + 1], sizes[index + 1]
    return tuple(times), tuple(sizes)


def parted(batch_ns: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By rows: the least time to run all of them, in one unit or in several, and the rows of the first unit.

    Among equals the fewest units.
    """
    times, firsts = [0], [0]
    for rows in range(1, len(batch_ns) + 1):
        first = min(range(rows, 0, -1), key=lambda part: batch_ns[part - 1] + times[rows - part])
        times.append(batch_ns[first - 1] + times[rows - first])
        firsts.append(first)
    return tuple(times[1:]), tuple(firsts[1:])


def to_the_end(times: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """By stage and size: the sum of the times of this stage and all later ones."""
    sums = accumulate(reversed(times), lambda behind, own: tuple(map(add, own, behind)))
    return tuple(sums)[::-1]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The fastest way of rows through the stages of a program, one unit at a time. Each table is by stage, then rows.

    At each stage the rows run as one unit or in several, each padded if that is faster.
    """

    unit_ns: tuple[tuple[int, ...], ...]  # of one unit
    part: tuple[tuple[int, ...], ...]  # rows of the first unit
    remaining_ns: tuple[tuple[int, ...], ...]  # until all rows have passed this stage and all later ones

    @classmethod
    def of(cls, times: Sequence[tuple[int, ...]]) -> StagePlan:
        """From the batch times of each stage."""
        units = tuple(padded(one)[0] for one in times)
        totals, firsts = zip(*map(parted, units), strict=True)
        return cls(units, firsts, to_the_end(totals))
