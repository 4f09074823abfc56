"""The time that the other workers have left, as columns of a control table for several workers."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Column 0: more than one worker is free. Column 1 + i x `phases` + p - 1, with p from 1 to `phases`: the others
    run units of `sizes[i]`, and have p / `phases` of `times[i]` left. That is a mean over all other workers; free ones
    have 0 left.

    `times[i]`: nanoseconds for which a unit of `sizes[i]` occupies its worker while all workers run; ascending.
    """

    sizes: tuple[int, ...]
    times: tuple[int, ...]
    phases: int

    def column(self, size: int, left_ns: float) -> int:
        """The column for units of up to `size` rows with `left_ns` left on average, rounded up to one of `sizes`.

        Never 0: if a second unit gains nothing, none should start just before the first one ends.
        """
        last = len(self.sizes) - 1
        index = min(bisect_left(self.sizes, size), last)
        while index < last and self.times[index] < left_ns:
            index += 1
        phase = min(self.phases, max(1, round(left_ns * self.phases / self.times[index])))
        return index * self.phases + phase


def kept_sizes(largest: int, ratio: int = 4) -> tuple[int, ...]:
    """Sizes that get columns: the largest batch, and repeatedly a `ratio`-th of it. Others are rounded up to these."""
    sizes = [largest]
    while sizes[0] >= ratio:
        sizes.insert(0, sizes[0] // ratio)
    return tuple(sizes)
