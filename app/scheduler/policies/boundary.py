"""Decides for `adaptive` what rows do between two stages: continue, wait for rows upstream, or run in parts.

A choice other than to continue is made only if its cost is lower: the rows in the system, integrated over time, plus
the value that the program's control table gives to what waits then. So a model in stages is on average no slower than a
whole one. The theory: docs/theory/policies.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, sqrt
from typing import NamedTuple

from app.scheduler.estimates.parts import StagePlan
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies.base import Cut, Hold, cut_padded, cut_rows
from app.scheduler.policies.offer import Neighbours, Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import Formed, Row

_FEW = 4.0  # up to so many expected arrivals each number is weighted by its probability
_TERMS = 16  # numbers of arrivals considered: with a mean of `_FEW` the probability of more is below 1e-5
_TRIED = 8  # up to so many rows, every number of rows is tried
_GAIN = 1e-6  # share of a cost: a smaller gain may be rounding

#: A run of the device: its time in nanoseconds, and how many rows end with it.
PlannedRun = tuple[float, int]


class _Wait(NamedTuple):
    """Wait `wait_ns` for `joining` rows; then `runs` bring all rows to the end. The first run includes the wait."""

    joining: int
    wait_ns: float
    runs: list[PlannedRun]


class _Options(NamedTuple):
    """The choices of the rows at a boundary."""

    here: Sequence[float]  # by size: nanoseconds from here to the end
    on: list[PlannedRun]  # the rows here continue together
    begun: list[PlannedRun]  # rows that have started upstream, after that
    waits: Iterator[_Wait]


def decide(offer: Offer, neighbours: Neighbours, now: int) -> Cut | Hold:
    """The decision at a stage that is not the first one and no cell."""
    rows = min(offer.ready.count, offer.rows)
    if offer.state.estimates.curves.lengths:  # they were picked by length: others would pad them
        return cut_rows(offer, rows)
    costs = _costs(offer, neighbours)
    options = None if costs is None or neighbours.downstream else _options(offer, neighbours, rows, costs)
    if costs is None or options is None:
        return begin(offer, neighbours, rows)
    first_stage = neighbours.upstream_stage == 0
    holds, part, due = False, 0, offer.due(now)
    least = costs.of([*options.on, *options.begun]) * (1 - _GAIN)
    for joining, wait_ns, runs in options.waits:
        if not first_stage and joining < neighbours.upstream:
            continue  # the others would not be in the batch
        cost = costs.of(runs, joining if first_stage else 0)
        if cost < least and now + wait_ns <= due:
            holds, least = True, cost
    for size, parts in _splits(rows, options.here):
        if (cost := costs.of([*parts, *options.begun])) < least:
            holds, part, least = False, size, cost
    if holds:
        return Hold(None)
    return begin(offer, neighbours, part or rows, Formed.TABLE if part else Formed.IDLE)


def join(offer: Offer, neighbours: Neighbours) -> Cut:
    """Start rows that join others waiting at a later stage: the number of them that costs least."""
    rows = min(offer.ready.count, offer.rows, offer.full - neighbours.downstream)
    costs, plan = _costs(offer, neighbours), offer.state.estimates.curves.plan
    if costs is not None and plan is not None:
        stage, waiting = neighbours.downstream_stage, neighbours.downstream
        counts = _counts(rows, costs.table_batch(waiting) - waiting)
        rows = min(counts, key=lambda joining: costs.of(_wait(plan, stage, waiting, 0, joining).runs, joining))
    return begin(offer, neighbours, rows)


def begin(offer: Offer, neighbours: Neighbours, rows: int, reason: Formed = Formed.IDLE) -> Cut:
    """Run so many rows, or the first part of them if parts are faster; the rest catches up later."""
    plan = offer.state.estimates.curves.plan
    rows = min(rows, offer.rows)
    if plan is not None and _costs(offer, neighbours) is not None:
        part = plan.part[offer.stage][rows - 1]
        rows, reason = part, Formed.TABLE if part < rows else reason
    return cut_padded(offer, rows, reason)


def passes_through(estimates: Estimates, stage: int, rows: Sequence[Row]) -> bool:
    """Whether a batch would run `stage` unchanged if nothing waits: neither padding nor splitting it is faster."""
    curves, control, size = estimates.curves, estimates.control, len(rows)
    plan = curves.plan
    if curves.lengths or plan is None:
        return True
    if curves.sizes[stage][0][size - 1] != size:
        return False
    if size == 1 or control is None or not control.values or estimates.level < 0:
        return True
    # a split that may gain is left to `decide`, which sees what has arrived
    return plan.part[stage][size - 1] == size and not any(_splits(size, plan.remaining_ns[stage]))


def _options(offer: Offer, neighbours: Neighbours, rows: int, costs: _Costs) -> _Options | None:
    """The choices; None if the times of some stage are unknown."""
    plan, stage, upstream = offer.state.estimates.curves.plan, neighbours.upstream_stage, neighbours.upstream
    if plan is None:
        return None
    begun: list[PlannedRun] = [(plan.remaining_ns[stage][min(upstream, offer.full) - 1], upstream)] if stage > 0 else []
    counts = _counts(min(upstream, offer.full - rows), costs.table_batch(rows) - rows)
    waits = (_wait(plan, offer.stage, rows, stage, joining) for joining in counts)
    return _Options(plan.remaining_ns[offer.stage], _together(plan, offer.stage, rows), begun, waits)


class _Costs:
    """Costs of choices by the table of one load, in rows x ns. `waiting`: rows that have not started."""

    __slots__ = ("_control", "_inside", "_level", "_rate", "_values", "_waiting")

    def __init__(self, control: ControlTables, level: int, waiting: int) -> None:
        self._control, self._level = control, level
        self._rate = control.loads[level] * control.peak / 1e9  # rows per nanosecond
        self._inside = control.inside[level]
        self._values = control.values[level]
        self._waiting = waiting

    def table_batch(self, more: int) -> int:
        """The batch that the table would run if so many more rows were waiting."""
        return self._control.serve(self._level, self._waiting + more)

    def of(self, runs: Sequence[PlannedRun], begun: int = 0) -> float:
        """The cost of these runs, one after another; `begun` of the waiting rows are part of them."""
        left = self._waiting - begun
        present = left + sum(rows for _, rows in runs)
        total = over = 0.0
        for time, rows in runs:
            total += present * time
            over += time
            present -= rows
        arriving = self._rate * over
        return total + arriving * over / 2 - self._inside * over + self._expected(left, arriving)

    def _expected(self, left: int, arriving: float) -> float:
        """The mean value of `left` rows plus a Poisson number of others with mean `arriving`."""
        if arriving > _FEW:
            spread = sqrt(arriving)
            return (self._value(left + arriving - spread) + self._value(left + arriving + spread)) / 2
        chance, mean = exp(-arriving), 0.0
        for more in range(_TERMS):
            mean += chance * self._value(left + more)
            chance *= arriving / (more + 1)
        return mean

    def _value(self, waiting: float) -> float:
        """Interpolated between whole numbers of rows, and extrapolated beyond the last state."""
        values = self._values
        low = min(int(waiting), len(values) - 2)
        return values[low] + (waiting - low) * (values[low + 1] - values[low])


def _costs(offer: Offer, neighbours: Neighbours) -> _Costs | None:
    """The costs at this load; None if other units run at the same time, or the table has no values."""
    level, control = offer.state.estimates.level, offer.state.estimates.control
    if control is None or not control.values or level < 0 or offer.free() != (1, 1):
        return None
    waiting = offer.ready.count
    if offer.stage:
        waiting = neighbours.upstream if neighbours.upstream_stage == 0 else 0
    return _Costs(control, level, waiting)


def _wait(plan: StagePlan, stage: int, rows: int, source: int, joining: int) -> _Wait:
    """`rows` rows at `stage` wait for `joining` rows from the stage `source`, and then continue with them."""
    wait_ns = plan.remaining_ns[source][joining - 1] - plan.remaining_ns[stage][joining - 1]
    (first, ended), *others = _together(plan, stage, rows + joining)
    return _Wait(joining, wait_ns, [(wait_ns + first, ended), *others])


def _counts(most: int, planned: int) -> Sequence[int]:
    """Numbers of rows worth trying: every one up to a few, else the one that completes the table's batch, and all."""
    if most <= _TRIED:
        return range(1, most + 1)
    return (planned, most) if 0 < planned < most else (most,)


def _together(plan: StagePlan, stage: int, rows: int) -> list[PlannedRun]:
    """The runs of rows that continue together from a stage to the end; at the last stage they end part by part."""
    parts, unit_ns = plan.part[-1], plan.unit_ns[-1]
    lead = plan.remaining_ns[stage][rows - 1] - plan.remaining_ns[-1][rows - 1]
    runs: list[PlannedRun] = []
    while rows:
        part = parts[rows - 1]
        runs.append((lead + unit_ns[part - 1], part))
        rows, lead = rows - part, 0
    return runs


def _splits(rows: int, times: Sequence[float]) -> Iterator[tuple[int, list[PlannedRun]]]:
    """Splits with which rows end earlier on average: the size of the parts, and their runs one after another.

    `times`: by size, the time of a part from here to the end.
    """
    size = rows
    while size > 1:
        size = (size + 1) // 2
        full, rest = divmod(rows, size)
        parts: list[PlannedRun] = [(times[size - 1], size)] * full
        if rest:
            parts.append((times[rest - 1], rest))
        over = total = 0.0
        for time, ended in parts:
            over += time
            total += ended * over
        if total < rows * times[rows - 1]:
            yield size, parts
