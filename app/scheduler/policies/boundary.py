"""What `adaptive` does between two stages: go on, wait for rows that come behind, or run fewer rows first.

Each choice is judged by what it costs if from then on the program is served as by its table, unsliced (one step of
policy iteration, or a rollout): rows in the system, integrated over time until the device is free again, plus the
table's own value of the rows that wait then, less the average cost of the time that has passed.

    go on    the b rows here run to the end; those that have begun behind them after that
    wait     m of those behind run to this boundary; then b + m rows go on together
    split    parts of the b rows run to the end one after the other

Going on is what the unsliced model does, but that each stage pads a batch as is fastest for it, and runs it in several
units where that is faster (`Course`); the table is solved for such times. Another choice is taken only where it costs
less, so that with Poisson arrivals, exact batch times and one unit at a time slicing a model makes no mean latency
worse. That is exact for one such choice in the course of things; that further ones follow can only make it better.
Values are of the nearest load that has a table; how many rows come during a run is weighed exactly while few are
expected, else by two points.

Where times by length are known, runs take those of their longest row, parts of a batch included, and only rows about as
long as those here are waited for at the first stage. Stages then run batches as they are, and the values stay those of
the table, for one length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, sqrt

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies.base import Around, Course, Cut, Facts, Hold, KeyView, go, go_padded
from app.scheduler.types import Formed

_FEW = 4.0  # rows expected to come: below it each number is weighed by its chance
_TERMS = 16  # of a Poisson mean of at most `_FEW`; the chance of more is below 1e-5
_TRIED = 8  # rows: so many numbers of them are all tried
_GAIN = 1e-6  # of a cost: what is gained beyond rounding

#: A run of the device: how long it takes, and how many rows end with it.
Run = tuple[float, int]


def decide(view: KeyView, around: Around, idle: Sequence[int], now: int) -> Cut | Hold:
    """`view` is of a stage behind the first that is no cell."""
    if view.facts.lengths:
        return _by_length(view, around, now)
    rows = min(view.ready, view.limit)
    queue = _queue(view, around)
    course = view.facts.course
    if queue is None or course is None or around.ahead:
        return begin(view, around, rows, idle)
    here = course.rest[around.stage]
    stage, behind = around.nearest
    begun = [(course.rest[stage][min(behind, view.full) - 1], behind)] if stage > 0 else []
    best, least = 0, queue.cost([*_together(course, around.stage, rows), *begun]) * (1 - _GAIN)
    planned = queue.planned(rows) - rows
    for joining in _joining(course, stage, min(behind, view.full - rows), planned):
        cost = queue.waiting(course, around.stage, rows, stage, joining)
        in_time = now + course.rest[stage][joining - 1] - here[joining - 1] <= view.due
        if cost < least and in_time and (stage == 0 or joining == behind):
            best, least = -1, cost
    best = _split(queue, rows, here, begun, best, least)
    if best < 0:
        return Hold(None)
    return begin(view, around, best or rows, idle, Formed.TABLE if best else Formed.IDLE)


def join(view: KeyView, around: Around, idle: Sequence[int]) -> Cut:
    """Rows begin to join others that wait for them at a later stage: as many of them as costs least."""
    rows = min(view.ready, view.limit, view.full - around.ahead)
    queue, course = _queue(view, around), view.facts.course
    if queue is not None and course is not None:
        tried = _joining(course, 0, rows, queue.planned(around.ahead) - around.ahead)
        rows = min(tried, key=lambda some: queue.waiting(course, around.following, around.ahead, 0, some))
    return begin(view, around, rows, idle)


def begin(view: KeyView, around: Around, rows: int, idle: Sequence[int], reason: Formed = Formed.IDLE) -> Cut:
    """Run so many rows, or the first part of them where parts are faster and the rest can catch up with it."""
    course = view.facts.course
    rows = min(rows, view.limit)
    if course is not None and _queue(view, around) is not None:
        part = course.firsts[around.stage][rows - 1]
        rows, reason = part, Formed.TABLE if part < rows else reason
    return go_padded(view, rows, idle, reason)


def _queue(view: KeyView, around: Around) -> _Queue | None:
    """None where other units run meanwhile, or the values of the table are not known: nothing can be foreseen."""
    facts = view.facts
    if facts.whole is None or facts.level < 0 or view.free != 1 or view.running != 1:
        return None
    stage, behind = around.nearest if around.stage else (0, view.ready)
    return _Queue(facts.whole, facts.level, behind if stage == 0 else 0)


def goes_on(facts: Facts, stage: int, rows: int, longest: int) -> bool:
    """Whether a batch goes on to `stage` as it is, where nothing waits: neither padded nor split to gain by it.

    `longest`: of its rows, which tells what parts of it take where times by length are known.
    """
    course = None if facts.lengths else facts.course
    if course is not None and facts.sizes and facts.sizes[0][rows - 1] != rows:
        return False
    if rows == 1 or facts.whole is None or facts.level < 0 or not facts.remaining:
        return True
    if course is not None and course.firsts[stage][rows - 1] < rows:
        return False
    here: Sequence[float] = facts.remaining[stage] if course is None else course.rest[stage]
    if facts.lengths:
        here = facts.lengths[stage].at(longest).times
    least = rows * here[rows - 1]
    size = rows
    while size > 1:
        size = (size + 1) // 2
        if _total(_parts(rows, size, here)) < least:
            return False  # it may gain: `decide` weighs what comes meanwhile
    return True


def _by_length(view: KeyView, around: Around, now: int) -> Cut | Hold:
    """As `decide`, where times by length are known."""
    rows = min(view.ready, view.limit)
    queue = _queue(view, around)
    if queue is None or around.ahead:
        return go(view, rows)
    stage, behind = around.nearest
    here, source, together_here = _times(view.facts, around)
    begun = [(source[min(behind, view.full) - 1], behind)] if stage > 0 else []
    on: list[Run] = [(here[rows - 1], rows), *begun]
    best, least = 0, queue.cost(on) * (1 - _GAIN)
    joining = min(behind if stage else around.fitting, view.full - rows)
    if joining > 0:
        wait = source[joining - 1] - together_here[joining - 1]
        together: list[Run] = [(wait + together_here[rows + joining - 1], rows + joining)]
        cost = queue.cost(together, joining if stage == 0 else 0)
        if now + wait <= view.due and cost < least and (stage == 0 or joining == behind):
            best, least = -1, cost
    best = _split(queue, rows, here, begun, best, least)
    if best < 0:
        return Hold(None)
    return go(view, best or rows, Formed.TABLE if best else Formed.IDLE)


def _times(facts: Facts, around: Around) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """By size, from here to the end: of the rows here; from their own stage of those behind; from here of both."""
    lengths = facts.lengths[around.stage]
    behind = around.longest_behind or around.longest  # at the first stage, those that fit are no longer
    both = lengths.at(max(around.longest, behind)).times
    return lengths.at(around.longest).times, facts.lengths[max(around.nearest[0], 0)].at(behind).times, both


def _split(queue: _Queue, rows: int, here: Sequence[float], begun: Sequence[Run], best: int, least: float) -> int:
    """The size of the parts whose cost is below `least`, if there are any; else `best`."""
    size = rows
    while size > 1:
        size = (size + 1) // 2
        parts = _parts(rows, size, here)
        if _total(parts) < rows * here[rows - 1] and (cost := queue.cost([*parts, *begun])) < least:
            best, least = size, cost
    return best


class _Queue:
    """What follows when the device is free, as the table of one load values it. `waiting`: rows that have not begun."""

    __slots__ = ("_control", "_inside", "_level", "_rate", "_values", "_waiting")

    def __init__(self, control: ControlTables, level: int, waiting: int) -> None:
        self._control, self._level = control, level
        self._rate = control.loads[level] * control.peak / 1e9  # rows per nanosecond
        self._inside = control.inside[level]
        self._values = control.values[level]
        self._waiting = waiting

    def planned(self, ahead: int) -> int:
        """Rows of which the table would make a batch, were those `ahead` still waiting."""
        return self._control.serve(self._level, self._waiting + ahead)

    def waiting(self, course: Course, stage: int, rows: int, source: int, joining: int) -> float:
        """What it costs that rows at `stage` wait for others of an earlier one, and then go on together."""
        wait = course.rest[source][joining - 1] - course.rest[stage][joining - 1]
        (first, ended), *others = _together(course, stage, rows + joining)
        return self.cost([(wait + first, ended), *others], joining if source == 0 else 0)

    def cost(self, runs: Sequence[Run], begun: int = 0) -> float:
        """Of these runs, one after the other, in rows x ns; `begun` of the rows that wait are part of them."""
        left = self._waiting - begun
        present = left + sum(rows for _, rows in runs)
        total = over = 0.0
        for time, rows in runs:
            total += present * time
            over += time
            present -= rows
        come = self._rate * over
        return total + come * over / 2 - self._inside * over + self._expected(left, come)

    def _expected(self, left: int, come: float) -> float:
        """The mean value of `left` rows and a Poisson number of others, `come` on average."""
        if come > _FEW:
            spread = sqrt(come)
            return (self._value(left + come - spread) + self._value(left + come + spread)) / 2
        chance, mean = exp(-come), 0.0
        for more in range(_TERMS):
            mean += chance * self._value(left + more)
            chance *= come / (more + 1)
        return mean

    def _value(self, waiting: float) -> float:
        """On the line between whole numbers, and beyond the last state on that through the last two."""
        values = self._values
        low = min(int(waiting), len(values) - 2)
        return values[low] + (waiting - low) * (values[low + 1] - values[low])


def _joining(course: Course, stage: int, most: int, planned: int) -> Iterator[int]:
    """Numbers of rows worth a try: all up to a few, else 1, 2, 4, ... of the parts in which they would run, and all.

    `planned`: with so many the table's batch would be complete.
    """
    if most <= _TRIED:
        yield from range(1, most + 1)
        return
    if 0 < planned < most:
        yield planned
    firsts, rows, count = course.firsts[stage], 0, 0
    while rows < most:
        rows += firsts[most - rows - 1]
        count += 1
        if rows == most or not count & (count - 1):
            yield rows


def _together(course: Course, stage: int, rows: int) -> list[Run]:
    """Rows go from a stage to the end together; at the last one they end part by part."""
    firsts, units = course.firsts[-1], course.units[-1]
    lead = course.rest[stage][rows - 1] - course.rest[-1][rows - 1]
    runs: list[Run] = []
    while rows:
        part = firsts[rows - 1]
        runs.append((lead + units[part - 1], part))
        rows, lead = rows - part, 0
    return runs


def _parts(rows: int, size: int, times: Sequence[float]) -> list[Run]:
    """Parts of `size`, and what is left, one after the other."""
    full, rest = divmod(rows, size)
    parts: list[Run] = [(times[size - 1], size)] * full
    return [*parts, (times[rest - 1], rest)] if rest else parts


def _total(runs: Sequence[Run]) -> float:
    """Rows x ns until the last has ended."""
    total = over = 0.0
    for time, rows in runs:
        over += time
        total += rows * over
    return total
