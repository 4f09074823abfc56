"""Which batch sizes to time next, and when they are known well enough.

A cell is a size and a number of units that run at once. Cells are visited in a new random order each pass, so that a
machine that drifts does not bend the curve, and a cell is left alone once its median is known well enough.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from math import floor, sqrt
from statistics import median

from app.scheduler.estimates.profile import ModelProfile, parse

Cell = tuple[int, int]  #: units at once, rows in each


def cells(sizes: Iterable[int], levels: Iterable[int] = ()) -> list[Cell]:
    """The sizes alone, and at each of the numbers of units at once."""
    return [(units, size) for units in (1, *levels) for size in sizes]


def coarser(max_batch: int) -> list[list[int]]:
    """Sets of sizes to measure, each with fewer than the one before: all, two an octave, one an octave."""
    octaves = {1 << power for power in range(max_batch.bit_length())}
    halves = {3 * size // 2 for size in octaves if size > 1 and 3 * size // 2 <= max_batch}
    return [list(range(1, max_batch + 1)), sorted(octaves | halves | {max_batch}), sorted(octaves | {max_batch})]


def levels(most: int) -> list[int]:
    """Numbers of units at once to measure: powers of two up to `most`, and `most`; those between are interpolated."""
    doubled = [1 << power for power in range(1, most.bit_length()) if 1 << power < most]
    return [*doubled, most] if most > 1 else []


class Sampler:
    """Which cell to time next, and what came of it.

    Every number of units at once gets the same time, pass by pass over its sizes: several units at once take much
    longer than one, and the sizes alone matter most.

    A cell is settled when it has `least` times and the 95 % confidence interval of their median is within `tolerance`
    of it to either side, or when it has `most`. Equal seeds and equal times give equal orders.
    """

    def __init__(
        self, wanted: Sequence[Cell], *, least: int = 5, most: int = 100, tolerance: float = 0.03, seed: int = 0
    ) -> None:
        self.times: dict[Cell, list[int]] = {cell: [] for cell in wanted}
        self._least = min(least, most)
        self._most = most
        self._tolerance = tolerance
        self._random = random.Random(seed)
        self._settled: set[Cell] = set()
        self._passes: dict[int, list[Cell]] = {units: [] for units, _ in wanted}
        self._spent = dict.fromkeys(self._passes, 0.0)

    def next(self) -> Cell | None:
        """The next cell, None when all are settled."""
        for units in sorted(self._spent, key=self._spent.__getitem__):
            left = self._passes[units]
            if not left:
                left += [cell for cell in self.times if cell[0] == units and cell not in self._settled]
                self._random.shuffle(left)
            if left:
                return left.pop()
        return None

    def add(self, cell: Cell, times: Iterable[int], cost: float = 1.0) -> None:
        """Nanoseconds of visits to this cell, and what it cost to get them, in whatever unit."""
        self.times[cell] += times
        self._spent[cell[0]] += cost
        count = len(self.times[cell])
        if count >= self._most or (count >= self._least and self.error(cell) <= self._tolerance):
            self._settled.add(cell)

    @property
    def complete(self) -> bool:
        """Every cell has been timed at least once."""
        return all(self.times.values())

    @property
    def done(self) -> int:
        """Cells that are settled."""
        return len(self._settled)

    def error(self, cell: Cell) -> float:
        """Half the confidence interval of the median, as a share of it; by ranks, so no shape is assumed."""
        times = sorted(self.times[cell])
        below = max(0, floor(len(times) / 2 - 0.98 * sqrt(len(times))))
        return (times[-1 - below] - times[below]) / 2 / median(times)

    def spread(self, cell: Cell) -> float:
        """Distance between the quartiles as a share of the median; of four times or more."""
        times = sorted(self.times[cell])
        return (times[3 * (len(times) - 1) // 4] - times[(len(times) - 1) // 4]) / median(times)

    def table(self, units: int) -> dict[int, int]:
        """Median nanoseconds by size, of what has been timed while `units` ran."""
        return {size: round(median(times)) for (k, size), times in self.times.items() if k == units and times}

    def profile(self, guess: Sequence[int] = (), **keys: object) -> ModelProfile:
        """What was timed as a profile, its other keys as given.

        Sizes that were not timed lie between their neighbours. Beyond the largest, the curve is that of `guess`,
        nanoseconds by size, as far as that goes, moved to meet it. Numbers of units at once at which not both ends of
        the curve were timed are left out. Raises ValueError when 1 was not timed alone.
        """
        alone = self.table(1)
        if guess and alone:
            last = max(alone)
            ratio = alone[last] / guess[last - 1]
            alone |= {size: round(guess[size - 1] * ratio) for size in range(last + 1, len(guess) + 1)}
        ends = {1, max(alone, default=1)}
        counts = sorted({units for units, _ in self.times if units > 1})
        tables = {units: table for units in counts if ends <= (table := self.table(units)).keys()}
        return parse(
            {
                **keys,
                "max_batch": max(ends),
                "batch_ms": _ms(alone),
                "concurrency": {str(units): _ms(table) for units, table in tables.items()},
                "spread": self._spreads(1),
                "concurrency_spread": {str(units): self._spreads(units) for units in tables},
                "repeats": {str(size): len(times) for (units, size), times in self.times.items() if units == 1},
            }
        )

    def _spreads(self, units: int) -> dict[str, float]:
        timed = [cell for cell, times in self.times.items() if cell[0] == units and len(times) >= 4]
        return {str(cell[1]): round(self.spread(cell), 4) for cell in timed}


def _ms(table: Mapping[int, int]) -> dict[str, float]:
    return {str(size): ns / 1e6 for size, ns in sorted(table.items())}
