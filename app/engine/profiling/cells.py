"""Which batches to time: a cell is a size, a number of units that run at once, and a length of the rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Cell(NamedTuple):
    """Units at once, rows in each, and the length of the rows; 0: their own length."""

    units: int
    size: int
    length: int = 0

    @property
    def group(self) -> tuple[int, int]:
        """Cells of one group make one curve."""
        return self.units, self.length


def cells(sizes: Iterable[int], levels: Iterable[int] = ()) -> list[Cell]:
    """Cells of each size alone, and with each number of units at once."""
    return [Cell(units, size) for units in (1, *levels) for size in sizes]


def at_lengths(sizes: Iterable[int], lengths: Iterable[int]) -> list[Cell]:
    """Cells of each size alone, at each length."""
    return [Cell(1, size, length) for length in lengths for size in sizes]


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
