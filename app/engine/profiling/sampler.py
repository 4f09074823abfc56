"""Chooses which batches to time next, and when their times are known well enough.

A cell is a size, a number of units that run at once, and a length of the rows. Cells are visited pass by pass: first in
the order given, then in a new random order each time, so that a drift of the machine's speed does not bend the curve. A
cell is skipped once its time is known well enough. For a model in stages each visit also gives the time of each stage.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from app.engine.profiling.measuring import UnitTime
from app.scheduler.estimates import curve
from app.scheduler.estimates.curve import Estimate
from app.scheduler.estimates.fields import interpolate
from app.scheduler.estimates.profile import ModelProfile, parse

LEAST = 5  # visits of a cell, at least; live batches correct the times later


class Cell(NamedTuple):
    """Units at once, rows in each, and the length of the rows; 0: their own length."""

    units: int
    size: int
    length: int = 0


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


def spread_of(times: Iterable[int]) -> float:
    """The interquartile range as a share of the median."""
    ordered = sorted(times)
    return (ordered[3 * (len(ordered) - 1) // 4] - ordered[(len(ordered) - 1) // 4]) / median(ordered)


class Sampler:
    """Visits of cells to time, and the profile that follows from the times.

    A cell is settled when its standard error (`curve`) is within `tolerance` after at least `least` visits, or after
    `most`. Every size is timed as often as its neighbours: curves bend and jump, so no size can be left out. `wanted`
    must go from small to large at each length, so that the time of each batch can be predicted from a smaller one
    (`expected`, `drop`). The random order has a fixed seed: equal times give equal orders.
    """

    def __init__(self, wanted: Iterable[Cell], *, least: int = LEAST, most: int = 20, tolerance: float = 0.02) -> None:
        self.visits: dict[Cell, list[UnitTime]] = {cell: [] for cell in wanted}
        self._least = min(least, most)
        self._most = most
        self._tolerance = tolerance
        self._random = random.Random(0)
        self._settled: set[Cell] = set()
        self._pass = [*reversed(self.visits)]

    def want(self, cells: Iterable[Cell]) -> None:
        """Visit these cells as well: first each of them, in this order, then all that are not settled."""
        added = list(cells)
        self.visits |= {cell: [] for cell in added}
        self._pass += reversed(added)

    def add(self, cell: Cell, visit: UnitTime) -> None:
        visits = self.visits[cell]
        visits.append(visit)
        if len(visits) >= self._most or (len(visits) >= self._least and self._is_known(visits)):
            self._settled.add(cell)

    def _is_known(self, visits: Sequence[UnitTime]) -> bool:
        return curve.estimates({1: [timed.ns for timed in visits]})[1].error <= self._tolerance

    def next(self) -> Cell | None:
        """The next cell, None when all are settled."""
        while len(self._settled) < len(self.visits):
            if not self._pass:
                self._pass = list(self.visits)
                self._random.shuffle(self._pass)
            if (cell := self._pass.pop()) not in self._settled:
                return cell
        return None

    def expected(self, cell: Cell) -> int:
        """An upper bound of the nanoseconds of a batch, from the next smaller one of its length; 0 if there is none."""
        table = self.table(cell.units, cell.length)
        size = max((size for size in table if size <= cell.size), default=0)
        return table[size] * cell.size // size if size else 0

    def drop(self, cell: Cell) -> None:
        """Skip this cell and all larger batches of its length."""
        self._settled |= {one for one in self.visits if _group(one) == _group(cell) and one.size >= cell.size}

    def estimates(self, units: int, length: int = 0, stage: int | None = None) -> dict[int, Estimate]:
        """By size, the times while `units` ran at once; of one stage if it is given."""
        cells = (cell for cell in self.visits if _group(cell) == (units, length))
        return curve.estimates({cell.size: self._times(cell, stage) for cell in cells})

    def _times(self, cell: Cell, stage: int | None = None) -> list[int]:
        return [timed.ns if stage is None else timed.by_stage[stage] for timed in self.visits[cell]]

    def table(self, units: int, length: int = 0, stage: int | None = None) -> dict[int, int]:
        """`estimates` as nanoseconds by size, smoothed where differences are not significant."""
        known = curve.drawn(self.estimates(units, length, stage))
        return {size: max(1, round(time)) for size, time in known.items()}

    def profile(
        self, guess: ModelProfile | None = None, length: int = 0, *, cell: bool = False, written: int = 0, **keys: Any
    ) -> ModelProfile:
        """The times as a profile; `keys` are its other keys. `length`: the rows' own length, if lengths vary.

        `cell`: the only stage is a step of a recurrent model, which takes the same time at any length. A step of a
        decoder does not: it also reads the `written` tokens that its rows had on average.

        Sizes that were not timed are interpolated. Beyond the largest timed size the curve follows `guess`, scaled to
        meet it; at another length it follows the curve of the rows' own length. Left out are numbers of units at once
        without both ends of the curve, and lengths without size 1. Raises ValueError if size 1 was not timed alone.
        """
        stages = max((len(timed.by_stage) for visits in self.visits.values() for timed in visits), default=0)
        guesses = guess.stages if guess and len(guess.stages) == stages else (guess,) * stages
        timed = self._timed(guess, length)
        parts = [self._timed(one, length, stage) for stage, one in enumerate(guesses)]
        if cell:
            parts = [{**part, "length_ms": _behind(part["length_ms"], written), "cell": True} for part in parts]
        sizes = {one.size: self._times(one) for one in self.visits if _group(one) == (1, 0)}
        return parse(
            {
                **keys,
                **timed,
                "max_batch": max(map(int, timed["batch_ms"]), default=1),
                "stages": parts,
                "error": {
                    **dict.fromkeys(timed["batch_ms"], curve.ONCE),  # for sizes that were not timed
                    **{str(size): round(one.error, 4) for size, one in self.estimates(1).items()},
                },
                "spread": {str(size): round(spread_of(times), 4) for size, times in sizes.items() if len(times) >= 4},
                "repeats": {str(size): len(times) for size, times in sizes.items()},
            }
        )

    def _timed(self, guess: ModelProfile | None, length: int, stage: int | None = None) -> dict[str, Any]:
        """The curves of the whole model, or of one stage, as keys of the profile format."""
        alone = self.table(1, stage=stage)
        if guess:
            alone = _extended(alone, dict(enumerate(guess.batch_ns, 1)))
        ends = {1, max(alone, default=1)}
        counts = sorted({cell.units for cell in self.visits if cell.units > 1})
        tables = {units: table for units in counts if ends <= (table := self.table(units, stage=stage)).keys()}
        lengths = sorted({cell.length for cell in self.visits} - {0})
        by_length = {other: self.table(1, other, stage) for other in lengths}
        curves = {other: _extended(table, alone) for other, table in by_length.items() if 1 in table}
        if length:
            curves[length] = alone
        return {
            "batch_ms": _ms(alone),
            "concurrency": {str(units): _ms(table) for units, table in tables.items()},
            "length_ms": {str(other): _ms(curve) for other, curve in sorted(curves.items())},
        }


def _behind(by_length: Mapping[str, Any], written: int) -> dict[int, Any]:
    """A decoder's times by tokens read and written, from those by tokens read; nothing for other models."""
    return {int(read) + written: table for read, table in by_length.items()} if written else {}


def _group(cell: Cell) -> tuple[int, int]:
    """Cells of one group make one curve."""
    return cell.units, cell.length


def _extended(table: Mapping[int, int], shape: Mapping[int, int]) -> dict[int, int]:
    """The table; beyond its largest size it follows `shape`, scaled to meet it."""
    last = max(table, default=0)
    if not last or last > max(shape):
        return dict(table)
    ratio = table[last] / interpolate(shape, [last])[0]
    return {**table, **{size: max(1, round(ns * ratio)) for size, ns in shape.items() if size > last}}


def _ms(table: Mapping[int, int]) -> dict[str, float]:
    return {str(size): ns / 1e6 for size, ns in sorted(table.items())}
