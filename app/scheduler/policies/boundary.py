"""What `adaptive` does between two stages: go on, wait for rows behind, or run fewer rows first.

    go on    the b rows here run to the end; those that have begun behind them after that
    wait     m of those behind run to this boundary; then b + m rows go on together
    split    parts of the b rows run to the end one after the other

Each choice costs the rows in the system, integrated over time until the device is free again, plus the value that the
program's control table gives the rows that wait then, less the average cost of the time that has passed: from then on
the program is served by its table, as if it had one stage (one step of policy iteration, or a rollout).

To go on is what the whole model does, but that each stage pads a batch and runs it in parts as is fastest for it
(`StagePlan`); the table is solved for such times. Another choice is taken only where it costs less, so that with
Poisson arrivals, exact batch times and one unit at a time a model in stages is no slower on average than a whole one.
That is exact for a single deviation from the table; further ones can only make it better. Values are of the nearest
load that has a table; the number of rows that arrive during a run is weighed exactly while few are expected, else by
two points.

Where times by length are known, a run takes the time of its longest row, stages run batches as they are, and at the
first stage only rows about as long as those here are waited for. The values are still those of the table, for one
length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, sqrt
from typing import NamedTuple

from app.scheduler.estimates.parts import StagePlan
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies.base import Cut, Hold, cut_padded, cut_rows
from app.scheduler.policies.view import Facts, KeyView, Neighbours
from app.scheduler.types import Formed

_FEW = 4.0  # rows expected to arrive: below it each number is weighed by its chance
_TERMS = 16  # of a Poisson mean of at most `_FEW`; the chance of more is below 1e-5
_TRIED = 8  # rows: so many numbers of them are all tried
_GAIN = 1e-6  # of a cost: what is gained beyond rounding

#: A run of the device: how long it takes, and how many rows end with it.
Run = tuple[float, int]


class _Wait(NamedTuple):
    """So many rows are waited for so long; then these runs take all rows to the end, the wait included."""

    joining: int
    wait_ns: float
    runs: list[Run]


class _Options(NamedTuple):
    """What the rows at a boundary could do."""

    here: Sequence[float]  # by size: nanoseconds from here to the end
    on: list[Run]  # they go on together
    begun: list[Run]  # those that have begun behind them, after that
    waits: Iterator[_Wait]


def decide(view: KeyView, neighbours: Neighbours, idle: Sequence[int], now: int) -> Cut | Hold:
    """`view` is of a stage behind the first that is no cell."""
    rows = min(view.ready, view.limit)
    costs = _costs(view, neighbours)
    options = None if costs is None or neighbours.downstream else _options(view, neighbours, rows, costs)
    if costs is None or options is None:
        return _run(view, neighbours, rows, idle, Formed.IDLE)
    first_stage = neighbours.upstream_stage == 0
    holds, part = False, 0
    least = costs.of([*options.on, *options.begun]) * (1 - _GAIN)
    for joining, wait_ns, runs in options.waits:
        if not first_stage and joining < neighbours.upstream:
            continue  # the others would be left behind
        cost = costs.of(runs, joining if first_stage else 0)
        if cost < least and now + wait_ns <= view.due:
            holds, least = True, cost
    for size, parts in _splits(rows, options.here):
        if (cost := costs.of([*parts, *options.begun])) < least:
            holds, part, least = False, size, cost
    if holds:
        return Hold(None)
    return _run(view, neighbours, part or rows, idle, Formed.TABLE if part else Formed.IDLE)


def join(view: KeyView, neighbours: Neighbours, idle: Sequence[int]) -> Cut:
    """Rows begin to join others that wait for them at a later stage: as many of them as costs least."""
    rows = min(view.ready, view.limit, view.full - neighbours.downstream)
    costs, plan = _costs(view, neighbours), view.facts.plan
    if costs is not None and plan is not None:
        stage, waiting = neighbours.downstream_stage, neighbours.downstream
        counts = _counts(plan, 0, rows, costs.table_batch(waiting) - waiting)
        rows = min(counts, key=lambda joining: costs.of(_wait(plan, stage, waiting, 0, joining).runs, joining))
    return begin(view, neighbours, rows, idle)


def begin(view: KeyView, neighbours: Neighbours, rows: int, idle: Sequence[int], reason: Formed = Formed.IDLE) -> Cut:
    """Run so many rows, or the first part of them where parts are faster and the rest can catch up with it."""
    plan = view.facts.plan
    rows = min(rows, view.limit)
    if plan is not None and _costs(view, neighbours) is not None:
        part = plan.part[view.stage][rows - 1]
        rows, reason = part, Formed.TABLE if part < rows else reason
    return cut_padded(view, rows, idle, reason)


def passes_through(facts: Facts, stage: int, rows: int, longest: int) -> bool:
    """Whether a batch runs through `stage` as it is, where nothing waits: neither padded nor split to gain by it.

    `longest`: of its rows, which tells what parts of it take where times by length are known.
    """
    plan = None if facts.lengths else facts.plan
    if plan is not None and facts.sizes and facts.sizes[stage][0][rows - 1] != rows:
        return False
    if rows == 1 or facts.control is None or not facts.control.values or facts.level < 0 or not facts.remaining:
        return True
    if plan is not None and plan.part[stage][rows - 1] < rows:
        return False
    here: Sequence[float] = facts.remaining[stage] if plan is None else plan.remaining_ns[stage]
    if facts.lengths:
        here = facts.lengths[stage].at(longest).times
    return not any(_splits(rows, here))  # one that may gain is weighed by `decide`, with what has arrived meanwhile


def _run(view: KeyView, neighbours: Neighbours, rows: int, idle: Sequence[int], reason: Formed) -> Cut:
    return cut_rows(view, rows, reason) if view.facts.lengths else begin(view, neighbours, rows, idle, reason)


def _options(view: KeyView, neighbours: Neighbours, rows: int, costs: _Costs) -> _Options | None:
    """None where the times of some stage are not known."""
    if view.facts.lengths:
        return _options_by_length(view, neighbours, rows)
    plan, stage, upstream = view.facts.plan, neighbours.upstream_stage, neighbours.upstream
    if plan is None:
        return None
    begun: list[Run] = [(plan.remaining_ns[stage][min(upstream, view.full) - 1], upstream)] if stage > 0 else []
    counts = _counts(plan, stage, min(upstream, view.full - rows), costs.table_batch(rows) - rows)
    waits = (_wait(plan, view.stage, rows, stage, joining) for joining in counts)
    return _Options(plan.remaining_ns[view.stage], _together(plan, view.stage, rows), begun, waits)


def _options_by_length(view: KeyView, neighbours: Neighbours, rows: int) -> _Options:
    lengths, stage, upstream = view.facts.lengths, neighbours.upstream_stage, neighbours.upstream
    longest = neighbours.longest
    longest_upstream = neighbours.longest_upstream or longest  # at the first stage, those that join are no longer
    here = lengths[view.stage].at(longest).times
    source = lengths[max(stage, 0)].at(longest_upstream).times
    together = lengths[view.stage].at(max(longest, longest_upstream)).times
    begun: list[Run] = [(source[min(upstream, view.full) - 1], upstream)] if stage > 0 else []
    joining = min(upstream if stage else neighbours.joinable, view.full - rows)
    waits: list[_Wait] = []
    if joining > 0:
        wait_ns = source[joining - 1] - together[joining - 1]
        waits = [_Wait(joining, wait_ns, [(wait_ns + together[rows + joining - 1], rows + joining)])]
    return _Options(here, [(here[rows - 1], rows)], begun, iter(waits))


class _Costs:
    """What choices cost by the table of one load, in rows x ns. `waiting`: rows that have not begun."""

    __slots__ = ("_control", "_inside", "_level", "_rate", "_values", "_waiting")

    def __init__(self, control: ControlTables, level: int, waiting: int) -> None:
        self._control, self._level = control, level
        self._rate = control.loads[level] * control.peak / 1e9  # rows per nanosecond
        self._inside = control.inside[level]
        self._values = control.values[level]
        self._waiting = waiting

    def table_batch(self, more: int) -> int:
        """Rows of which the table would make a batch, if so many more were waiting."""
        return self._control.serve(self._level, self._waiting + more)

    def of(self, runs: Sequence[Run], begun: int = 0) -> float:
        """These runs one after the other; `begun` of the rows that wait are part of them."""
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
        """The mean value of `left` rows and a Poisson number of others, `arriving` on average."""
        if arriving > _FEW:
            spread = sqrt(arriving)
            return (self._value(left + arriving - spread) + self._value(left + arriving + spread)) / 2
        chance, mean = exp(-arriving), 0.0
        for more in range(_TERMS):
            mean += chance * self._value(left + more)
            chance *= arriving / (more + 1)
        return mean

    def _value(self, waiting: float) -> float:
        """On the line between whole numbers, and beyond the last state on that through the last two."""
        values = self._values
        low = min(int(waiting), len(values) - 2)
        return values[low] + (waiting - low) * (values[low + 1] - values[low])


def _costs(view: KeyView, neighbours: Neighbours) -> _Costs | None:
    """None where other units run meanwhile, or the table has no values: nothing can be foreseen then."""
    level, control = view.facts.level, view.facts.control
    if control is None or not control.values or level < 0 or view.free != 1 or view.running != 1:
        return None
    waiting = view.ready
    if view.stage:
        waiting = neighbours.upstream if neighbours.upstream_stage == 0 else 0
    return _Costs(control, level, waiting)


def _wait(plan: StagePlan, stage: int, rows: int, source: int, joining: int) -> _Wait:
    """Rows at `stage` wait for others of an earlier one, and then go on together."""
    wait_ns = plan.remaining_ns[source][joining - 1] - plan.remaining_ns[stage][joining - 1]
    (first, ended), *others = _together(plan, stage, rows + joining)
    return _Wait(joining, wait_ns, [(wait_ns + first, ended), *others])


def _counts(plan: StagePlan, stage: int, most: int, planned: int) -> Iterator[int]:
    """Numbers of rows worth a try: all up to a few, else 1, 2, 4, ... of the parts in which they would run, and all.

    `planned`: with so many the table's batch would be complete.
    """
    if most <= _TRIED:
        yield from range(1, most + 1)
        return
    if 0 < planned < most:
        yield planned
    parts, rows, count = plan.part[stage], 0, 0
    while rows < most:
        rows += parts[most - rows - 1]
        count += 1
        if rows == most or not count & (count - 1):
            yield rows


def _together(plan: StagePlan, stage: int, rows: int) -> list[Run]:
    """Rows go from a stage to the end together; at the last one they end part by part."""
    parts, unit_ns = plan.part[-1], plan.unit_ns[-1]
    lead = plan.remaining_ns[stage][rows - 1] - plan.remaining_ns[-1][rows - 1]
    runs: list[Run] = []
    while rows:
        part = parts[rows - 1]
        runs.append((lead + unit_ns[part - 1], part))
        rows, lead = rows - part, 0
    return runs


def _splits(rows: int, times: Sequence[float]) -> Iterator[tuple[int, list[Run]]]:
    """Ways to run rows in parts one after the other that end earlier on average: the size of the parts, and their runs.

    `times`: by size, of a part from here to the end.
    """
    size = rows
    while size > 1:
        size = (size + 1) // 2
        full, rest = divmod(rows, size)
        parts: list[Run] = [(times[size - 1], size)] * full
        if rest:
            parts.append((times[rest - 1], rest))
        over = total = 0.0
        for time, ended in parts:
            over += time
            total += ended * over
        if total < rows * times[rows - 1]:
            yield size, parts
