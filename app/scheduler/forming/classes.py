"""Real-time work before best-effort work (REEF, R1 to R8, on stage boundaries): whether a best-effort unit may start.

The scheduler is in real-time mode while a real-time row waits or runs, else in normal mode. A device gives back what it
was handed at a boundary only, so what it is handed of best-effort work is little:

    normal mode      best-effort units start while all those handed over and not ended are predicted to take at most the
                     budget; one at a time, of one row, where even that takes longer. A unit that its worker goes on
                     with by itself counts with the stage or step that runs, at which it can be recalled. Of several
                     workers one is kept free of them.
    real-time mode   none starts unless it fills what is left free (dynamic kernel padding, by admission):
                     rule 1  it is within the budget, or it is the only one and ends sooner than real-time work does
                     rule 2  the pairs' profiles say that it, and those beside it already, slow no program that runs
                             by more than the bound: nothing was measured of several, so their parts are added up
                     and no real-time row waits. Those that go on are recalled, and those that stand behind others on a
                     worker are taken back, unless they keep these rules.

A real-time row for which the device has no room does not count as one that waits: best-effort rows hold the room, and
must go on to give it back. Nor does one that its policy holds back until a time, but then a best-effort unit must be
predicted to end by that time. Where even one row takes longer, a unit of one row starts after all when no best-effort
unit could start for `_PATIENCE` times its predicted time: a device that only holds rows is idle. Where no worker is
kept, the next call of a program with regular real-time calls counts like a row that is held until it is expected.

Presets: `reef` is this. `reef_n` counts units in place of the budget (each worker has as many as it may be handed, each
one stage or step), takes none back and fills nothing. `seq` runs one unit at a time, real-time ones first, and what has
begun goes through all its stages before others begin. `streams` knows no classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from app.scheduler.estimates.arrivals import Arrivals
from app.scheduler.forming.turns import Share, Turns
from app.scheduler.forming.views import longest_of
from app.scheduler.forming.workers import Workers, running_stage
from app.scheduler.policies import Hold
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level, ReadySet, rank
from app.scheduler.types import KEEPING, DeviceSpec, Klass, Preset, Row, Unit

_BEST_EFFORT = Klass.BEST_EFFORT  # looked up once, used per step
_UNBOUNDED = 1 << 62
_PATIENCE = 10  # so at most a tenth of the time that real-time rows are held is lost to units that end too late

#: By how much of its time a unit of the first program is slowed by one of the second beside it, where measured.
Pairs = Mapping[tuple[int, int], float]


class Fits(NamedTuple):
    """A best-effort unit of at most so many rows may start on one of these workers.

    Up to `surely` rows it keeps the budget as it is. One of more is to have the size `rows`, which does: three rows may
    take longer than four.
    """

    workers: Sequence[int]
    rows: int
    surely: int

    def within(self, capacity: int) -> Fits:
        """The same for workers of no more than this capacity."""
        if self.rows <= capacity:
            return self
        sure = min(self.surely, capacity)
        return Fits(self.workers, sure, sure)


class Gate:
    """Of one device. `units`: the best-effort ones that have not ended. `pairs`: from the driver, see `Pairs`.

    While there are no best-effort calls and no `units`, nothing here needs to be called, but for the share's account.
    """

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        self._classes = device.classes
        self._ledger = ledger
        self._workers = workers
        self._withdraws = device.withdraws and device.classes.preset is Preset.REEF
        self._most = max(1, min(len(device.workers), device.max_running) - 1)  # workers with best-effort work
        self.kept = _kept(device)
        self.level = _LEVELS[device.classes.preset]
        self._blocked: list[ReadySet] = []
        self._held: dict[ReadySet, tuple[int, int]] = {}  # of real-time rows: until when, and how many
        self._refused: int | None = None  # since when held rows have kept best-effort units from starting
        self._arrivals: dict[int, Arrivals] = {}  # of real-time calls, by program
        self._asked: set[int] = set()  # units that are to be withdrawn
        self._owed: set[int] = set()  # best-effort units that are part of the share
        self.units: dict[int, Unit] = {}
        self.turns = Turns()
        self.share = Share(device.classes.share)
        self.shares = device.classes.share > 0
        self.pairs: Pairs = {}

    # order

    def rank(self, ready: ReadySet, row: Row) -> tuple[int, ...]:
        """Which set goes first, by its first row: the smaller. Where classes are told apart, of best-effort rows."""
        preset = self._classes.preset
        if preset is Preset.STREAMS:
            return rank(row)[1:]
        if preset is Preset.SEQ:
            return (row.stage == 0, *rank(row))  # what has begun goes on to its end
        klass = -1 if self.share.due else _BEST_EFFORT
        return (klass, row.call.priority, self.turns.tag(ready.key[0]), *row.order)

    # what waits and runs

    def open(self, now: int) -> None:
        """A new step begins."""
        if self._blocked:
            self._blocked = []
        if self._held:
            self._held = {ready: held for ready, held in self._held.items() if now < held[0]}

    def no_room(self, ready: ReadySet) -> None:
        """The device has no room for any row that waits here."""
        if not ready.klass:
            self._blocked.append(ready)

    def hold(self, ready: ReadySet, until: int | None) -> None:
        """The policy of these real-time rows holds them back until a time; None: it does not, or until no known one."""
        if until is None:
            self._held.pop(ready, None)
        else:
            self._held[ready] = until, ready.count

    def _realtime_waits(self) -> bool:
        """Whether real-time rows wait that are neither blocked nor held.

        Rows that have come since their set was held may fill a batch, and so count.
        """
        waiting = sum(state.waiting - state.best_effort for state in self._ledger.states.values())
        held = sum(min(count, ready.count) for ready, (_, count) in self._held.items())
        return waiting > sum(ready.count for ready in self._blocked) + held

    def arrive(self, program: int, at: int) -> None:
        """A real-time call has come."""
        if self.kept is None and self._classes.preset is Preset.REEF:
            if program in self._arrivals:
                self._arrivals[program].arrive(at)
            else:
                self._arrivals[program] = Arrivals(at)

    def _expected(self, now: int) -> list[tuple[int, int]]:
        """From when to when each real-time call is expected."""
        return [found for one in self._arrivals.values() if (found := one.expected(now)) is not None]

    def _hold_ends(self, now: int) -> int | None:
        """When the first real-time rows that are held, or expected, may start."""
        held = (until for ready, (until, _) in self._held.items() if ready.count)
        return min((*held, *(soonest for soonest, _ in self._expected(now))), default=None)

    def _realtime_units(self) -> list[Unit]:
        return [unit for unit in self._workers.units.values() if unit.id not in self.units]

    def _best_effort_units(self) -> list[Unit]:
        return list(self.units.values())

    # the decision

    def admit(self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, now: int) -> Fits | Hold:
        """Whether a best-effort unit of this set, of at most `limit` rows, may start now."""
        preset = self._classes.preset
        if preset in (Preset.STREAMS, Preset.SEQ):
            return Fits(usable, limit, limit)
        theirs = self._best_effort_units()
        workers = self._open_to_best_effort(usable, theirs)
        if not workers:
            return Hold(None)
        if not self.share.due:
            realtime = self._realtime_units()
            if self._realtime_waits() or (realtime and not self._may_join(ready.key[0], realtime, theirs, workers)):
                return Hold(None)
        return self._within_budget(ready, state, workers, limit, theirs, now)

    @property
    def fills(self) -> bool:
        """Whether best-effort rows may run as the padding of a real-time unit."""
        return self._classes.preset is Preset.REEF

    def for_realtime(self, usable: Sequence[int]) -> Sequence[int]:
        """The workers for a real-time unit: the one that is kept, unless it is busy and another is free."""
        if self.kept is None or self.kept not in usable:
            return usable
        if self._workers.of(self.kept) and self._workers.idle(usable):
            return usable
        return [self.kept]

    def _open_to_best_effort(self, usable: Sequence[int], theirs: Iterable[Unit]) -> Sequence[int]:
        busy = {unit.worker for unit in theirs}
        if len(busy) >= self._most:
            return [worker for worker in usable if worker in busy]
        return [worker for worker in usable if worker != self.kept]

    def _may_join(self, program: int, realtime: list[Unit], theirs: list[Unit], workers: Sequence[int]) -> bool:
        """Rule 2 for a unit that is to start on one of these workers: behind another of the same it runs after it."""
        behind = workers[0] if len(workers) == 1 else None
        beside = {unit.worker: unit.program for unit in reversed(theirs) if unit.worker != behind}
        return self._may_pad([program, *beside.values()], realtime)

    def _may_pad(self, programs: Sequence[int], realtime: list[Unit]) -> bool:
        """Rule 2, of programs that run at once."""
        if self._classes.preset is not Preset.REEF:
            return False
        most, pairs = self._classes.slowdown, self.pairs
        return all(
            sum(pairs.get((program, other), _UNBOUNDED) for other in programs) <= most
            for program in {unit.program for unit in realtime}
        )

    def _within_budget(
        self, ready: ReadySet, state: ProgramState, workers: Sequence[int], limit: int, theirs: list[Unit], now: int
    ) -> Fits | Hold:
        """The most rows that keep the budget and end before held real-time rows may start, and rule 1."""
        stage = ready.key[1]
        latency = state.latency[stage]
        counts = self._classes.preset is Preset.REEF_N
        budget = _UNBOUNDED if counts else self._classes.budget_ns
        ends = None if self.share.due else self._hold_ends(now)
        if not latency.known:
            if ends is not None and (patience := self._wait(self._classes.budget_ns, now)):
                return patience
            return Hold(None) if theirs and not counts else Fits(workers, limit, limit)
        running = self._workers.running(workers)
        length = 0
        if latency.by_length:
            length = longest_of([*ready.again(), *ready.first(limit, limit)])
        left = budget - handed_over_ns(theirs, now)
        most_ns = left if ends is None else min(left, ends - self._workers.soonest(workers, now))
        within = [latency.predict(rows, running, length) <= most_ns for rows in range(1, limit + 1)]
        surely = next((rows for rows, kept in enumerate(within) if not kept), limit)
        if surely:
            most = max(rows for rows, kept in enumerate(within, 1) if kept)
            return Fits(workers, surely if state.program.stages[stage].repeats else most, surely)
        time = latency.predict(1, running, length)
        if most_ns < min(left, time) and (patience := self._wait(time, now)):
            return patience
        if time <= left:
            return Fits(workers, 1, 1)
        if theirs:
            return Hold(now + max(1, (time - left) // len({unit.worker for unit in theirs})))
        realtime = self._realtime_units()
        if realtime and not self.share.due and time > max(left_ns(unit, now, whole=True) for unit in realtime):
            return Hold(None)
        return Fits(workers, 1, 1)

    def _wait(self, time: int, now: int) -> Hold | None:
        """Until when a unit that would end after held real-time rows may start has to wait; None: no longer."""
        if self._refused is None:
            self._refused = now
        until = self._refused + _PATIENCE * time
        return Hold(min((until, *(latest for _, latest in self._expected(now))))) if now < until else None

    def steps(self, steps: int, rows: Sequence[Row], size: int, stage: int, state: ProgramState, now: int) -> int:
        """Of so many stages or steps that a worker would go on for by itself, those that may follow one another.

        At the end of each a best-effort unit can be recalled, so each is to be within the budget.
        """
        preset = self._classes.preset
        if steps == 1 or preset in (Preset.STREAMS, Preset.SEQ):
            return steps
        if preset is Preset.REEF_N:
            return 1
        if (ends := self._hold_ends(now)) is not None:
            stages = [stage] * steps if state.program.stages[stage].repeats else range(stage, stage + steps)
            in_time = (now + time <= ends for time in accumulate(state.latency[one].predict(size) for one in stages))
            steps = max(1, sum(takewhile(bool, in_time)))
        if state.program.stages[stage].repeats:
            return steps
        left = self._classes.budget_ns - handed_over_ns(self._best_effort_units(), now)
        times = (latency.predict(size) for latency in state.latency[stage + 1 : stage + steps])
        return next((place for place, time in enumerate(times, 1) if time > left), steps)

    # preemption

    def preempts(self, unit: Unit) -> bool:
        """Whether a best-effort unit is to make way: real-time mode, and it does not fill what that leaves free."""
        return unit.klass is _BEST_EFFORT and self._makes_way(unit, self._padding())

    def _padding(self) -> dict[int, int] | None:
        """Workers that go on with best-effort units in real-time mode, and the programs of these; None: all go on.

        Together they keep rule 2. The first worker has the first choice, so that from step to step it is the same ones.
        """
        if self._classes.preset is not Preset.REEF:
            return None
        realtime, found = self._realtime_units(), dict[int, int]()
        if self._realtime_waits():
            return found
        if not realtime:
            return None
        first = {unit.worker: unit.program for unit in reversed(self._best_effort_units())}
        for worker, program in sorted(first.items()):
            if self._may_pad([*found.values(), program], realtime):
                found[worker] = program
        return found

    def _makes_way(self, unit: Unit, padding: dict[int, int] | None) -> bool:
        if padding is None or padding.get(unit.worker) == unit.program or unit.id in self._owed:
            return False
        if unit.worker not in padding:
            return True
        beside = [program for worker, program in padding.items() if worker != unit.worker]
        return not self._may_pad([unit.program, *beside], self._realtime_units())

    def may_follow(self, unit: Unit, now: int) -> bool:
        """Whether a further step of a best-effort unit may be pushed behind it."""
        if unit.klass is not _BEST_EFFORT or self._classes.preset is not Preset.REEF:
            return True
        handed = handed_over_ns(self._best_effort_units(), now)
        return not self.preempts(unit) and handed + unit.predicted <= self._classes.budget_ns

    def withdraw(self) -> list[Unit]:
        """Best-effort units that stand behind others of their workers, and are to make way."""
        units = self._best_effort_units() if self._withdraws else ()
        padding = self._padding() if units else None
        if padding is None:
            return []
        behind = (unit for unit in units if self._workers.of(unit.worker)[0] is not unit)
        found = [unit for unit in behind if unit.id not in self._asked and self._makes_way(unit, padding)]
        self._asked.update(unit.id for unit in found)
        return found

    # accounts

    def forget(self, program: int) -> None:
        """A program has gone."""
        self.turns.forget(program)
        self._arrivals.pop(program, None)

    def started(self, unit: Unit) -> None:
        if unit.klass is _BEST_EFFORT:
            self.turns.take(unit.program, unit.predicted)
            self._refused = None
            self.units[unit.id] = unit
        if self.shares:
            if self.share.due and unit.klass is _BEST_EFFORT:
                self._owed.add(unit.id)
            self.share.start(unit.id, unit.klass, unit.predicted)

    def ended(self, unit: Unit, compute_ns: int) -> None:
        self.units.pop(unit.id, None)
        self._asked.discard(unit.id)
        if self.shares:
            self._owed.discard(unit.id)
            self.share.end(unit.id, unit.klass, compute_ns)


def _by_class(row: Row) -> Level:
    return (row.call.klass, row.call.priority)


#: By preset: what decides whether a row goes before a unit that runs.
_LEVELS: dict[Preset, Callable[[Row], Level]] = {
    Preset.REEF: _by_class,
    Preset.REEF_N: _by_class,
    Preset.SEQ: lambda row: (0, 0),
    Preset.STREAMS: lambda row: (0, row.call.priority),
}


def handed_over_ns(units: Iterable[Unit], now: int) -> int:
    """Predicted time of units until they have ended or can be recalled, added up."""
    return sum(left_ns(unit, now) for unit in units)


def left_ns(unit: Unit, now: int, *, whole: bool = False) -> int:
    """Predicted time until a unit has ended, or can be recalled where it is one of several steps; `whole`: its end.

    Stages that it has yet to go through count where they are longer: its worker begins them by itself.
    """
    begun = max(0, now - unit.begins)
    if whole or unit.steps == 1 or unit.recalled:
        return max(0, unit.predicted - begun)
    if unit.times:
        stage, left = running_stage(unit, now)
        return max(left, *unit.times[stage + 1 :], 0)
    step = max(1, unit.predicted // unit.steps)
    return step - begun % step


def _kept(device: DeviceSpec) -> int | None:
    """The worker that is kept free of best-effort work: that of the highest priority, then the largest.

    None where one unit runs at a time, and where nothing is kept from a class.
    """
    workers = device.workers
    if min(len(workers), device.max_running) == 1 or device.classes.preset not in KEEPING:
        return None
    return max(range(len(workers)), key=lambda worker: (-workers[worker].priority, workers[worker].capacity, worker))
