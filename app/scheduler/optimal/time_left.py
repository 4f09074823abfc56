"""What the other workers have left: the second part of a state of several workers, as columns of a control table."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Column 0: nothing runs that a decision waits for. Then for each of `sizes` the phases of units of so many rows.

    `times[i]`: nanoseconds for which a unit of `sizes[i]` keeps its worker while all workers run, ascending as the
    sizes. Column 1 + i x `phases` + p - 1: of these p / `phases` are left, p from 1 to `phases`, on average over all
    other workers, of which free ones have nothing left.
    """

    sizes: tuple[int, ...]
    times: tuple[int, ...]
    phases: int

    def column(self, size: int, left_ns: float) -> int:
        """The column of units of up to `size` rows with `left_ns` left on average: of the next size that is kept.

        Never 0: where a second unit gains nothing, none starts just before the end of the first.
        """
        last = len(self.sizes) - 1
        index = min(bisect_left(self.sizes, size), last)
        while index < last and self.times[index] < left_ns:
            index += 1
        phase = min(self.phases, max(1, round(left_ns * self.phases / self.times[index])))
        return index * self.phases + phase

    def __post_init__(self) -> None:
        """Raises ValueError, or TypeError for what are no numbers: it may come from a file."""
        if not len(self.sizes) == len(self.times) > 0 or min(self.times) <= 0 or self.phases < 1:
            raise ValueError("beside: expected sizes, their times above 0, and phases")


def kept_sizes(largest: int, ratio: int = 4) -> tuple[int, ...]:
    """The largest batch and so many times smaller ones: sizes between are taken for the next of these."""
    sizes = [largest]
    while sizes[0] >= ratio:
        sizes.insert(0, sizes[0] // ratio)
    return tuple(sizes)
