"""What a test knows of each row and call without asking the Scheduler, and the checks of every Step against it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import (
    AT_ONCE,
    Batch,
    Call,
    DeviceSpec,
    Drop,
    Fault,
    Formed,
    Klass,
    Program,
    Reason,
    Refusal,
    Row,
    RowState,
    Step,
    Unit,
)

from .cells import check_joining
from .class_book import Idle, check_classes, check_refusal

UNBOUNDED = DeviceSpec(workers=()).max_alive
_LONGEST_NS = 400  # of any batch time with which traces measure programs anew
_OUTLIER = 4  # a batch counts at most so many times its prediction
EAGER = {"no_wait", "late", "adaptive"}  # never idle a usable worker; adaptive but for tables of several workers


@dataclass(slots=True, eq=False)
class RowFacts:
    """One row. `cells` counts down the steps it needs at each stage that repeats."""

    entry: CallFacts
    index: int
    slot: int
    length: int
    rank: tuple[int, int, int, int]
    steps: int
    cells: int
    bad: bool
    well: int  # steps of a cell that it makes before one fails, if it is bad
    stage: int = 0
    state: RowState = RowState.WAITING
    alive: bool = False  # it counts against max_alive
    retried: bool = False  # it waits in a group of a failed unit
    advanced: bool = False  # it has been through a unit
    answers: list[int] = field(default_factory=list)  # the slot each time it ended


@dataclass(slots=True, eq=False)
class CallFacts:
    call: Call
    rows: list[RowFacts]
    left: str | None = None  # how: done, cancelled, or the reason of its drop


class Book:
    """Follows one Scheduler. `submit`, `cancel` and `finish` are told before it is; `check` sees each of its Steps.

    `patient`: control tables may let a worker wait for another. `exact`: units take as long as predicted.
    """

    def __init__(
        self, device: DeviceSpec, programs: tuple[Program, ...], *, patient: bool = False, exact: bool = True
    ) -> None:
        self.exact = exact
        self.device = device
        self.programs = {program.id: program for program in programs}
        self.calls: dict[int, CallFacts] = {}
        self.units: dict[int, Unit] = {}
        self.waiting: dict[int, dict[RowFacts, None]] = {program.id: {} for program in programs}  # by program
        self.alive = 0
        self.alive_of = {program.id: 0 for program in programs}
        self.pairs: dict[tuple[int, int], float] = {}  # see `Scheduler.pair`
        self.failures = {program.id: 0 for program in programs}  # units in a row that a model failed
        self.most_failures = 0
        self.faults: set[Fault] = set()
        self.full: dict[int, int] = {}  # by program: rows of a full unit of the first stage
        self.made: dict[int, tuple[int, int]] = {}  # by unit of several stages: how many, and when the next began
        self.times: dict[int, list[int]] = {}  # of each of its stages or steps, as predicted when it started
        self._idle = Idle()
        self.settled: set[int] = set()  # units that are to end when the first of their rows does
        self._sequence = 0
        self.eager = not patient and all(one.policy.name in EAGER and not one.one_unit for one in programs)
        # Between keys, too: but rows at one stage may step aside for those at another, where a policy looks at stages.
        plain = all(program.policy.name == "no_wait" or not self._several(program.id) for program in programs)
        bounds = {device.max_alive, *(program.max_alive for program in programs)}
        self._ordered = self.eager and plain and bounds == {UNBOUNDED}

    def _several(self, program: int) -> bool:
        stages = self.programs[program].stages
        return len(stages) > 1 or stages[0].repeats

    # what the driver tells

    def submit(self, call: Call, steps: int, bad: frozenset[int], well: int = 0) -> None:
        entry = CallFacts(call, [])
        self.calls[call.id] = entry
        for index, row in enumerate(call.rows):
            self._sequence += 1
            rank = (int(call.klass), call.priority, call.arrived, self._sequence)
            facts = RowFacts(entry, index, row.slot, row.length, rank, steps, steps, index in bad, well)
            entry.rows.append(facts)
            self.waiting[call.program][facts] = None

    def cancel(self, call_id: int) -> None:
        entry = self.calls.get(call_id)
        if entry is not None and entry.left is None:
            self._leave(entry, "cancelled")

    def fault(self, unit: Unit) -> Fault | None:
        """MODEL where a bad row runs, and its first step in this unit fails."""
        return Fault.MODEL if self.stops(unit, 0) else None

    def stops(self, unit: Unit, steps: int) -> bool:
        """Whether a row fails behind so many steps of a unit: its worker ends the unit before that."""
        cell = self.programs[unit.program].stages[unit.stage].repeats
        return any(facts.bad and facts.well * cell == steps for facts in map(self._facts, unit.rows))

    def ended(self, unit: Unit, steps: int = 1) -> tuple[int, ...]:
        """Positions of the rows for which the last of these steps of a repeating stage was their last."""
        return tuple(i for i, row in enumerate(unit.rows) if self._facts(row).cells <= steps)

    def finish(self, unit: Unit, error: Fault | None, steps: int = 1, *, continues: bool = False) -> None:
        """`steps`: those that it made, or stages. `continues`: its worker has it still, with the rows left."""
        del self.units[unit.id]
        if error is not None:
            self.faults.add(error)
        self.failures[unit.program] = 0 if error is None else self.failures[unit.program] + (error is Fault.MODEL)
        self.most_failures = max(self.most_failures, self.failures[unit.program])
        for facts in map(self._facts, unit.rows):
            if continues and facts.cells > steps:
                facts.cells -= steps
                facts.well -= steps
                facts.advanced = True
            elif facts.entry.left is not None:
                self._end(facts)
            elif error is not None:
                self._wait(facts, retried=True)
                if not facts.advanced:
                    self._set_alive(facts, False)
            else:
                self._advance(facts, unit, steps)

    def stage_times(self, unit: Unit, scheduler: Scheduler) -> list[int]:
        """What each stage or step of a unit is predicted to take; none where nothing is known."""
        if not unit.forecast.predicted:
            return []
        if self.programs[unit.program].stages[unit.stage].repeats:
            return [unit.forecast.predicted // unit.course.steps] * unit.course.steps
        first, *others = scheduler.states[unit.program].estimates.latency[unit.stage : unit.stage + unit.course.steps]
        lead = unit.forecast.begins - unit.started
        times = [first.predict(unit.size, unit.forecast.running, unit.forecast.length, lead)]
        return times + [one.compute(unit.size, unit.forecast.running, unit.forecast.length) for one in others]

    def _advance(self, facts: RowFacts, unit: Unit, steps: int) -> None:
        program = self.programs[unit.program]
        facts.advanced = True
        if program.stages[unit.stage].repeats and facts.cells > steps:
            facts.cells -= steps
            facts.well -= steps
            self._wait(facts)
            return
        following = unit.stage + (1 if program.stages[unit.stage].repeats else steps)
        if following < len(program.stages):
            facts.stage, facts.cells = following, facts.steps
            self._wait(facts)
        else:
            facts.answers.append(facts.slot)
            self._end(facts)

    # the checks

    def check(self, step: Step, scheduler: Scheduler, now: int) -> None:
        self.full = {program: state.full[0] for program, state in scheduler.states.items()}
        for drop in step.drop:
            self._check_drop(drop, now)
        for call in step.done:
            self._check_done(call)
        for unit in step.start:
            self._check_start(unit, scheduler, now)
        check_classes(self, step, scheduler, now)
        self._idle.check(self, step, scheduler, now)
        assert [unit.id for unit in scheduler.units.values()] == list(self.units)
        assert len({unit.worker for unit in self.units.values()}) <= self.device.max_running
        assert scheduler._ledger.alive == self.alive <= self.device.max_alive
        for program, waiting in self.waiting.items():
            state = scheduler.states.get(program)
            assert self.alive_of[program] <= self.programs[program].max_alive
            if state is not None:
                assert state.queue.alive == self.alive_of[program]
            for klass in Klass:
                arrived = [facts.entry.call.arrived for facts in waiting if facts.entry.call.klass is klass]
                assert (0 if state is None else state.queue.waiting[klass]) == len(arrived)
                assert scheduler.oldest(program, klass) == min(arrived, default=None)
        self._check_wake(step, now)
        self._check_batches(scheduler)
        self._check_recalls(step, scheduler)
        if self.eager:
            self._check_nothing_idles(step, now)

    def check_over(self, scheduler: Scheduler) -> None:
        """Nothing is left: every call has gone, every row has ended."""
        assert all(entry.left is not None for entry in self.calls.values())
        assert not self.units
        assert not list(scheduler.units.values())
        assert scheduler._ledger.alive == self.alive == 0
        assert not any(self.waiting.values())

    def check_refusal(self, call: Call, refusal: Refusal, scheduler: Scheduler, now: int) -> None:
        """A queue is full of rows of the class that is refused, or as long as its callers wait."""
        program, rows, klass = call.program, len(call.rows), call.klass
        if refusal.reason is Reason.DEADLINE_UNREACHABLE and klass is Klass.REALTIME:
            assert call.deadline is not None
            check_refusal(self, rows, program, call.deadline, scheduler, now)
        if refusal.reason is Reason.QUEUE_FULL:
            alike = sum(facts.entry.call.klass is klass for facts in self.waiting[program])
            patient = alike >= scheduler.states[program].queue.patience[klass].bound > self.programs[program].max_batch
            assert patient or alike + rows > self.programs[program].max_queue

    def _check_recalls(self, step: Step, scheduler: Scheduler) -> None:
        """A unit of several steps has been recalled if a row should leave it, or others should join it or go first."""
        for unit in [*step.recall, *step.end_at_next_row]:
            assert self.units[unit.id] is unit
            several = unit.course.steps > 1 or unit.course.continue_without
            assert several or unit.id in self.settled or unit in step.end_at_next_row
            self.settled.update(unit.id for unit in step.end_at_next_row)
        able = self._with_room([facts for waiting in self.waiting.values() for facts in waiting])
        for unit in self.units.values():
            if unit.course.steps == 1 or unit.course.recalled:
                continue
            rows = [self._facts(row) for row in unit.rows]
            assert all(facts.entry.left is None for facts in rows), "a row whose call has left goes on"
            best = min(self._level(facts) for facts in rows)
            assert not [facts for facts in able if self._level(facts) < best]
            program = self.programs[unit.program]
            most = min(self.device.workers[unit.worker].capacity, program.max_batch)
            most = min(most, scheduler.states[unit.program].full[unit.stage])  # of a cell, what pays
            room = self._room(program.id, unit.klass, dict.fromkeys(self.programs, 0)) > 0
            fits = len(rows) < most and room and not self.faults
            if program.stages[unit.stage].repeats and fits:
                joiners = any(facts.entry.call.klass is unit.klass for facts in self.waiting[unit.program])
                if program.policy.name == "adaptive" and joiners:
                    assert not unit.course.continue_without, "it goes on when rows end that others wait for"
                    check_joining(self, unit, most, scheduler)
                assert program.policy.name == "adaptive" or not joiners, "a row waits that could join"

    def _check_batches(self, scheduler: Scheduler) -> None:
        """The batch table tells what its rows have been through, by what this Book knows of them."""
        held: dict[int, dict[int, list[RowFacts]]] = {}
        for entry in self.calls.values():
            for facts in entry.rows:
                batch = entry.call.rows[facts.index].batch
                if batch is not None:
                    held.setdefault(entry.call.program, {}).setdefault(batch.id, []).append(facts)
        for program, state in scheduler.states.items():
            members = held.get(program, {})
            assert (state.batches is not None) == self._several(program)
            batches = state.batches.batches.values() if state.batches is not None else ()
            assert sorted(members) == sorted(batch.id for batch in batches)
            for batch in batches:
                _check_batch(batch, members[batch.id], len(state.program.stages))

    def _check_drop(self, drop: Drop, now: int) -> None:
        entry = self.calls[drop.call.id]
        assert entry.left is None, f"call {drop.call.id} left twice"
        if drop.reason is Reason.DEADLINE:
            assert drop.call.deadline is not None
            assert drop.call.deadline <= now
        elif drop.reason is Reason.DEADLINE_UNREACHABLE:
            assert drop.call.deadline is not None
            assert drop.call.deadline > now, "a deadline that has passed is no prediction"
            assert any(facts.state is RowState.WAITING for facts in entry.rows), "only rows that wait are cut"
        elif drop.reason is not Reason.CLOSED:
            assert drop.reason.value in self.faults
        if drop.reason is Reason.MODEL and drop.row >= 0:
            assert entry.rows[drop.row].bad, "a row was named that does not fail"
        self._leave(entry, drop.reason.value)

    def _check_done(self, call: Call) -> None:
        entry = self.calls[call.id]
        assert entry.left is None, f"call {call.id} left twice"
        for facts, row in zip(entry.rows, call.rows, strict=True):
            assert facts.answers == [row.slot]
        entry.left = "done"

    def _check_start(self, unit: Unit, scheduler: Scheduler, now: int) -> None:
        worker, program = self.device.workers[unit.worker], self.programs[unit.program]
        rows = [self._facts(row) for row in unit.rows]
        assert 1 <= len(rows) <= unit.size <= min(worker.capacity, program.max_batch)
        assert len(set(rows)) == len(rows)
        assert not (program.one_unit and any(one.program == unit.program for one in self.units.values()))
        assert {self._key(facts) for facts in rows} == {self._key(rows[0])}
        assert (unit.program, unit.stage, unit.started) == (*self._key(rows[0])[:2], now)
        for facts, row in zip(rows, unit.rows, strict=False):
            assert facts.slot == row.slot
            assert facts.state is RowState.WAITING
            assert facts.entry.left is None, "a row starts after its call has left"
            assert facts.entry.call.deadline is None or now < facts.entry.call.deadline
            if facts.entry.call.deadline is not None and unit.reason is not Formed.RETRY:
                longest, forecast = max(facts.length for facts in rows), unit.forecast
                estimates, lead_ns = scheduler.states[unit.program].estimates, forecast.begins - unit.started
                ends = forecast.begins + estimates.time(unit.size, unit.stage, forecast.running, longest, lead_ns)
                assert ends <= facts.entry.call.deadline, "a row starts that is predicted to end too late"
        before = self._load()[unit.worker]
        assert not before or self._opens(before) <= now, "handed over too early behind another unit"
        assert not self._to_join(rows[0], before), "a row of a cell begins behind a unit that it could join"
        self._check_order(unit, rows, before)
        if unit.course.steps > 1:
            self.times[unit.id] = self.stage_times(unit, scheduler)
        rows = [self._facts(row) for row in unit.rows]
        self.units[unit.id] = unit
        assert sum(u.worker == unit.worker for u in self.units.values()) <= self.device.push_depth
        for facts in rows:
            self.waiting[unit.program].pop(facts, None)
            facts.state, facts.retried = RowState.RUNNING, False
            self._set_alive(facts, True)

    def _level(self, facts: RowFacts) -> tuple[int, int]:
        """What decides whether a row goes before a unit that runs."""
        return (facts.rank[0], facts.rank[1])

    def _check_order(self, unit: Unit, rows: list[RowFacts], before: list[Unit]) -> None:
        """A unit begins with the best row of its key; one that a policy cut passes over no row that it could take.

        Rows that run again go before the others of their priority, so that no bad row holds these up.

        Unless the policy reorders: then rows of one class and priority may be next to one another by length, and if it
        sees deadlines, a first row that has one may be passed over: it leaves by then. Rows of a
        cell that runs on this worker are to join it, and let others begin behind it.
        """
        key, retry = self._key(rows[0]), unit.reason is Formed.RETRY
        at_key = [facts for facts in self.waiting[unit.program] if self._key(facts) == key]
        peers = self._with_room(at_key)
        head = min(peers, key=_turn)
        by_deadline = self.programs[unit.program].policy.name == "deadline"
        passed_over = by_deadline and head.entry.call.deadline is not None
        assert rows[0] is head or (passed_over and self._picked(unit, rows))
        assert rows == sorted(rows, key=lambda facts: facts.rank)
        assert {facts.retried for facts in rows} == {retry}
        if not retry:
            others = self._with_room([facts for facts in at_key if not facts.retried])
            free = sorted(others, key=lambda facts: facts.rank)
            assert rows == free[: len(rows)] or self._picked(unit, rows)
        if self._ordered and unit.klass is Klass.REALTIME:
            everyone = self._with_room([facts for waiting in self.waiting.values() for facts in waiting])
            first = min(facts.rank for facts in everyone if not self._to_join(facts, before))
            own = min(facts.rank for facts in peers)
            waiting = {program for program, rows in self.waiting.items() if any(row in everyone for row in rows)}
            assert own[:2] == first[:2]
            assert own == first or own[2] <= first[2] + sum(map(self._slowest, waiting)), "overtaken by too much"

    def _slowest(self, program: int) -> int:
        """What a batch of it takes to its end, at most."""
        return sum(_OUTLIER * max(_LONGEST_NS, *stage.profile.batch_ns, 0) for stage in self.programs[program].stages)

    def _to_join(self, facts: RowFacts, units: list[Unit]) -> bool:
        """Whether one of a worker's units is of the cell at which this row waits, and of its class."""
        program, stage, _, klass = self._key(facts)
        cell = self.programs[program].stages[stage].repeats
        return cell and any((unit.program, unit.stage, unit.klass) == (program, stage, klass) for unit in units)

    def _picked(self, unit: Unit, rows: list[RowFacts]) -> bool:
        """Whether these rows may go together by their length."""
        program, key, level = self.programs[unit.program], self._key(rows[0]), rows[0].rank[:2]
        waiting = (facts for facts in self.waiting[unit.program] if self._key(facts) == key)
        alike = [facts for facts in waiting if facts.rank[:2] == level and not facts.retried]
        alike.sort(key=lambda facts: (facts.length, facts.rank))
        picked = sorted(rows, key=lambda facts: (facts.length, facts.rank))
        first = alike.index(picked[0])
        may = program.policy.name in ("adaptive", "deadline") and program.policy.reorder and not unit.stage
        return may and picked == alike[first : first + len(picked)]

    def _with_room(self, waiting: list[RowFacts]) -> list[RowFacts]:
        """Those of the rows that could start: rows for which the device has no room are passed over, those that hold
        room already, between two steps of a cell or two stages, go on."""
        starting = dict.fromkeys(self.programs, 0)
        able = []
        for facts in sorted(waiting, key=_turn):
            ident = facts.entry.call.program
            if facts.alive or self._room(ident, facts.entry.call.klass, starting) > 0:
                able.append(facts)
                starting[ident] += not facts.alive
        return able

    def _room(self, program: int, klass: Klass, starting: dict[int, int]) -> int:
        """Rows that may start besides so many of each program: best-effort ones leave room for a real-time batch."""
        most, own = self.device.max_alive, self.programs[program].max_alive
        if klass is Klass.BEST_EFFORT:
            most -= min(most // 2, max(self.full.values()))
            own -= min(own // 2, self.full[program])
        return min(most - self.alive - sum(starting.values()), own - self.alive_of[program] - starting[program])

    def _check_nothing_idles(self, step: Step, now: int) -> None:
        """No worker that may be handed a unit, while a row waits for which the device has room."""
        waiting = [facts for waiting in self.waiting.values() for facts in waiting]
        able = self._with_room([facts for facts in waiting if facts.entry.call.klass is Klass.REALTIME])
        if not able:  # best-effort rows may have to wait
            return
        load = self._load()
        may_begin = sum(map(bool, load)) < self.device.max_running
        assert not (may_begin and [] in load), "a worker idles while rows wait"
        opens = [self._opens(units) for facts in able for units in load if units and not self._to_join(facts, units)]
        assert not any(time <= now for time in opens), "a worker is about to end what it has, while rows wait"
        if opens and min(opens) < AT_ONCE:
            assert step.wake_at is not None
            assert step.wake_at <= min(opens), "a worker will open, and nobody looks"

    def _load(self) -> list[list[Unit]]:
        """The units of each worker, the one that runs first."""
        units = self.units.values()
        return [[unit for unit in units if unit.worker == worker] for worker in range(len(self.device.workers))]

    def _opens(self, units: list[Unit]) -> int:
        """When a worker with these units may be handed one more."""
        if len(units) >= self.device.push_depth or units[-1].course.continue_without:
            return AT_ONCE
        if self.device.push_ahead_ns == AT_ONCE:
            return 0
        if not all(unit.forecast.predicted for unit in units):
            return AT_ONCE
        return units[-1].forecast.begins + units[-1].forecast.predicted - self.device.push_ahead_ns

    def _check_wake(self, step: Step, now: int) -> None:
        assert step.wake_at is None or step.wake_at > now
        if any(self.waiting.values()) and not self.units and not step.held:
            assert step.wake_at is not None, "rows wait, nothing runs and no wake-up is asked for"
        deadlines = [e.call.deadline for e in self.calls.values() if e.left is None and e.call.deadline is not None]
        if deadlines:
            assert step.wake_at is not None
            assert step.wake_at <= min(deadlines)

    # rows

    def _facts(self, row: Row) -> RowFacts:
        return self.calls[row.call.id].rows[row.index]

    def _key(self, facts: RowFacts) -> tuple[int, int, int, int]:
        """Rows of one key may share a unit: those of one class too."""
        program = self.programs[facts.entry.call.program]
        bucketed = not program.stages[facts.stage].repeats  # a cell is one key whatever the length
        bucket = bisect_left(program.length_buckets, facts.length) if bucketed else 0
        return (program.id, facts.stage, bucket, facts.entry.call.klass)

    def _leave(self, entry: CallFacts, how: str) -> None:
        entry.left = how
        for facts in entry.rows:
            if facts.state is RowState.WAITING:
                del self.waiting[entry.call.program][facts]
                self._end(facts)

    def _wait(self, facts: RowFacts, *, retried: bool = False) -> None:
        facts.state, facts.retried = RowState.WAITING, retried
        self.waiting[facts.entry.call.program][facts] = None

    def _end(self, facts: RowFacts) -> None:
        facts.state = RowState.ENDED
        self._set_alive(facts, False)

    def _set_alive(self, facts: RowFacts, alive: bool) -> None:
        self.alive += alive - facts.alive
        self.alive_of[facts.entry.call.program] += alive - facts.alive
        facts.alive = alive


def _turn(facts: RowFacts) -> tuple[int, ...]:
    """Of two rows of a key the smaller goes first."""
    klass, priority, *order = facts.rank
    return (klass, priority, not facts.retried, *order)


def _check_batch(batch: Batch, members: list[RowFacts], stages: int) -> None:
    """Rows that ended with their batch at the last stage stay counted there, at every stage and in its size."""
    assert {facts.entry.call.klass for facts in members} == {batch.klass}
    assert len(batch.rows) == len(members) > 0
    running = [facts.state is RowState.RUNNING for facts in members]
    for stage in range(stages):
        launched, completed = batch.launched(stage), batch.completed(stage)
        before = batch.completed(stage - 1) if stage else batch.size
        assert 0 <= completed <= before <= batch.size
        assert completed <= launched <= batch.size
        assert completed == batch.ended + sum(facts.stage > stage for facts in members)
        here = [facts.stage == stage for facts in members]
        assert launched >= completed + sum(at and runs for at, runs in zip(here, running, strict=True))
