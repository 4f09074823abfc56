"""Chooses which batch to time next, and makes a profile of the times.

The next is the cell whose time is known worst. The times of each group of cells are evidence for a `Curve`, as those of
live batches are; for a model in stages each stage has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any

from app.engine.profiling.cells import Cell
from app.engine.profiling.measuring import UnitTime
from app.scheduler.estimates.curve import Curve
from app.scheduler.estimates.fields import interpolate
from app.scheduler.estimates.profile import Profile, parse
from app.scheduler.estimates.smooth import ONCE, Estimate, drawn

LEAST = 3  # visits of a cell, at least; live batches correct the times later
_MOST = 20
_TRUST = 4.0  # ordinary batches that one beside no calls counts as
_TOLERANCE = 0.02
_UNKNOWN = 1.0  # error of a size before its first visit: what was known before only gives the shape of the curve


class Sampler:
    """Visits of cells to time, and the profile that follows from the times.

    A cell is settled when the error of its size is within `tolerance` after at least LEAST visits, or after `most`. In
    the first pass cells are visited in the order given, which must go from small to large at each length, so that the
    time of each batch can be predicted from a smaller one (`expected`, `drop`). `known`: what is known before.
    """

    def __init__(
        self, known: Profile, wanted: Iterable[Cell], *, most: int = _MOST, tolerance: float = _TOLERANCE
    ) -> None:
        self.visits = dict.fromkeys(wanted, 0)
        self._known = known
        self._most = most
        self._tolerance = tolerance
        self._curves: dict[tuple[int, int], list[Curve]] = {}  # by group: of the whole, then of each stage
        self._dropped: set[Cell] = set()

    def want(self, cells: Iterable[Cell]) -> None:
        """Visit these cells as well."""
        self.visits |= dict.fromkeys(cells, 0)

    def add(self, cell: Cell, visit: UnitTime) -> None:
        """A batch of this cell has taken so long."""
        self.visits[cell] += 1
        if cell.group not in self._curves:
            self._curves[cell.group] = self._begun(cell, visit)
        for curve, ns in zip(self._curves[cell.group], (visit.ns, *visit.by_stage), strict=True):
            curve.observe(cell.size, ns, trust=_TRUST)

    def _begun(self, cell: Cell, visit: UnitTime) -> list[Curve]:
        """Curves that follow what is known of the sizes, scaled to meet the first time."""
        count = len(visit.by_stage)
        known = [self._known, *(self._known.stages if len(self._known.stages) == count else [self._known] * count)]
        errors = (_UNKNOWN,) * self._known.max_batch
        return [
            Curve(Profile(one.batch_ns, errors=errors).scaled(ns / one.batch_ns[cell.size - 1]))
            for one, ns in zip(known, (visit.ns, *visit.by_stage), strict=True)
        ]

    def next(self) -> Cell | None:
        """The next cell, None when all are settled."""
        open_cells = [cell for cell in self.visits if not self._settled(cell)]
        return min(open_cells, key=lambda cell: (self.visits[cell] > 0, -self._error(cell)), default=None)

    def _settled(self, cell: Cell) -> bool:
        visits = self.visits[cell]
        known = visits >= LEAST and self._error(cell) <= self._tolerance
        return known or visits >= self._most or cell in self._dropped

    def _error(self, cell: Cell) -> float:
        """0 before the first visit, so that the first pass keeps its order."""
        return self._curves[cell.group][0].error(cell.size) if self.visits[cell] else 0.0

    def expected(self, cell: Cell) -> int:
        """An upper bound of the nanoseconds of a batch, from the next smaller one of its length; 0 if there is none."""
        table = self.table(*cell.group)
        size = max((size for size in table if size <= cell.size), default=0)
        return table[size] * cell.size // size if size else 0

    def drop(self, cell: Cell) -> None:
        """Skip this cell and all larger batches of its length."""
        self._dropped |= {one for one in self.visits if one.group == cell.group and one.size >= cell.size}

    def estimates(self, units: int, length: int = 0, part: int = 0) -> dict[int, Estimate]:
        """By timed size, the times while `units` ran at once. `part`: 0 for the whole, 1 for the first stage."""
        if (units, length) not in self._curves:
            return {}
        curve = self._curves[units, length][part]
        sizes = [cell.size for cell, visits in self.visits.items() if visits and cell.group == (units, length)]
        return {size: Estimate(curve.predict(size), curve.error(size)) for size in sizes}

    def table(self, units: int, length: int = 0, part: int = 0) -> dict[int, int]:
        """`estimates` as nanoseconds by size, smoothed where differences are not significant."""
        return {size: max(1, round(ns)) for size, ns in drawn(self.estimates(units, length, part)).items()}

    def profile(self, length: int = 0, *, cell: bool = False, written: int = 0, **keys: Any) -> Profile:
        """The times as a profile; `keys` are its other keys. `length`: the rows' own length, if lengths vary.

        `cell`: the only stage is a step of a recurrent model, which takes the same time at any length. A step of a
        decoder does not: it also reads the `written` tokens that its rows had on average.

        Sizes that were not timed are interpolated. Beyond the largest timed size the curve follows what was known
        before, scaled to meet it; at another length it follows the curve of the rows' own length. Left out are numbers
        of units at once without both ends of the curve, and lengths without size 1. Raises ValueError if size 1 was not
        timed alone.
        """
        parts = [self._timed(part, length) for part in range(len(self._curves.get((1, 0), [None])))]
        whole, *stages = parts
        if cell:
            stages = [{**part, "length_ms": _behind(part["length_ms"], written), "cell": True} for part in stages]
        known = self.estimates(1)
        noise = self._curves[1, 0][0].speed.noise if known else 0.0
        return parse(
            {
                **keys,
                **whole,
                "max_batch": max(map(int, whole["batch_ms"]), default=1),
                "stages": stages,
                "error": {
                    **dict.fromkeys(whole["batch_ms"], ONCE),  # for sizes that were not timed
                    **{str(size): round(one.error, 4) for size, one in known.items()},
                },
                "noise": round(sqrt(noise), 4),
                "repeats": {str(one.size): n for one, n in self.visits.items() if one.group == (1, 0) and n},
            }
        )

    def _timed(self, part: int, length: int) -> dict[str, Any]:
        """The curves of the whole model, or of one stage, as keys of the profile format."""
        before = self._known if not part or len(self._known.stages) < part else self._known.stages[part - 1]
        alone = _extended(self.table(1, part=part), dict(enumerate(before.batch_ns, 1)))
        ends = {1, max(alone, default=1)}
        counts = sorted({cell.units for cell in self.visits if cell.units > 1})
        tables = {units: table for units in counts if ends <= (table := self.table(units, part=part)).keys()}
        lengths = sorted({cell.length for cell in self.visits} - {0})
        by_length = {other: self.table(1, other, part) for other in lengths}
        curves = {other: _extended(table, alone) for other, table in by_length.items() if 1 in table}
        if length:
            curves[length] = alone
        return {
            "batch_ms": _ms(alone),
            "concurrency": {str(units): _ms(table) for units, table in tables.items()},
            "length_ms": {str(other): _ms(table) for other, table in sorted(curves.items())},
        }


def _behind(by_length: Mapping[str, Any], written: int) -> dict[int, Any]:
    """A decoder's times by tokens read and written, from those by tokens read; nothing for other models."""
    return {int(read) + written: table for read, table in by_length.items()} if written else {}


def _extended(table: Mapping[int, int], shape: Mapping[int, int]) -> dict[int, int]:
    """The table; beyond its largest size it follows `shape`, scaled to meet it."""
    last = max(table, default=0)
    if not last or last > max(shape):
        return dict(table)
    ratio = table[last] / interpolate(shape, [last])[0]
    return {**table, **{size: max(1, round(ns * ratio)) for size, ns in shape.items() if size > last}}


def _ms(table: Mapping[int, int]) -> dict[str, float]:
    return {str(size): ns / 1e6 for size, ns in sorted(table.items())}
