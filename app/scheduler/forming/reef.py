"""Real-time work before best-effort work, on stage boundaries: the preset `reef` (REEF, R1 to R8).

The scheduler is in real-time mode while a real-time row waits or runs, else in normal mode. Work on a device can be
taken back at a boundary only, so little best-effort work is handed to it:

    normal mode      best-effort units start on idle workers while all those that run are predicted to take at most the
                     budget together; one at a time, of one row, where even that takes longer. A unit of several stages
                     or steps counts with the one that runs, at which it can be recalled. Of several workers one is
                     kept free of them.
    real-time mode   none starts unless it fills what is left free (dynamic kernel padding, by admission):
                     rule 1  it is within the budget, or it is the only one and ends sooner than real-time work does
                     rule 2  it and those that run already slow no real-time program by more than the bound, by the
                             measured slowdown of each pair (their sum: nothing was measured of three)
                     and no real-time row waits. Units that break these rules are recalled.

Real-time rows that cannot start yet, because the device has no room or their policy holds them, do not count as waiting
(`upcoming`); best-effort units must end before they are due. Where no worker is kept, the next call of a program with
regular real-time calls counts the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile

from app.scheduler.forming.gate import Allowance, Gate
from app.scheduler.forming.upcoming import Upcoming
from app.scheduler.forming.views import longest_of
from app.scheduler.forming.workers import Workers, running_stage
from app.scheduler.policies import Hold
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level, ReadySet, rank
from app.scheduler.types import DeviceSpec, Klass, Row, Unit

_BEST_EFFORT = Klass.BEST_EFFORT  # looked up once, used per step
UNBOUNDED = 1 << 62  # a budget that no sum of times reaches; the slowdown of a pair that was not measured


class Reef(Gate):
    """The preset `reef`."""

    separates = True
    fills = True
    overtakes = True

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        super().__init__(device, ledger, workers)
        self._most = max(1, min(len(device.workers), device.max_running) - 1)  # workers with best-effort work
        self._upcoming = Upcoming()
        self._budget_ns = device.classes.budget_ns
        self.kept = kept_worker(device)

    # order

    def rank(self, ready: ReadySet, row: Row) -> tuple[int, ...]:
        """Best-effort programs of one priority take turns."""
        if not row.call.klass:
            return rank(row)
        klass = -1 if self.share.due else _BEST_EFFORT
        return (klass, row.call.priority, self.turns.tag(ready.key[0]), *row.order[1:])

    def level(self, row: Row) -> Level:
        return (row.call.klass, row.call.priority)

    # what the dispatcher reports

    def begin_step(self, now: int) -> None:
        self._upcoming.begin_step(now)

    def no_room(self, ready: ReadySet) -> None:
        if not ready.klass:
            self._upcoming.block(ready)

    def hold(self, ready: ReadySet, until: int | None) -> None:
        self._upcoming.hold(ready, until)

    def realtime_arrived(self, program: int, at: int) -> None:
        if self.kept is None:
            self._upcoming.realtime_arrived(program, at)

    # whether a unit starts

    def admit(
        self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, now: int
    ) -> Allowance | Hold:
        workers = self._open_to_best_effort(usable)
        if not workers:
            return Hold(None)
        if not self.share.due:
            realtime = self._realtime_units()
            if self._realtime_waits() or (realtime and not self._may_join(ready.key[0], realtime)):
                return Hold(None)
        return self._within_budget(ready, state, workers, limit, now)

    def for_realtime(self, usable: Sequence[int]) -> Sequence[int]:
        """The worker that is kept, unless it is busy and another is free."""
        if self.kept is None or self.kept not in usable:
            return usable
        if self._workers.of(self.kept) and self._workers.idle(usable):
            return usable
        return [self.kept]

    def _realtime_waits(self) -> bool:
        """Whether real-time rows wait that could start."""
        waiting = sum(state.waiting - state.best_effort for state in self._ledger.states.values())
        return waiting > self._upcoming.waiting

    def _realtime_units(self) -> list[Unit]:
        return [unit for unit in self._workers.units.values() if unit.id not in self.units]

    def _open_to_best_effort(self, usable: Sequence[int]) -> Sequence[int]:
        if not self.share.due:  # behind another unit it would be in the way of real-time calls that come meanwhile
            usable = [worker for worker in usable if not self._workers.of(worker)]
        busy = {unit.worker for unit in self.units.values()}
        if len(busy) >= self._most:
            return [worker for worker in usable if worker in busy]
        return [worker for worker in usable if worker != self.kept]

    def _may_join(self, program: int, realtime: list[Unit]) -> bool:
        """Rule 2 for a unit that is to start, on a worker that is idle."""
        beside = {unit.worker: unit.program for unit in reversed(self.units.values())}
        return self._slows_little([program, *beside.values()], realtime)

    def _slows_little(self, programs: Sequence[int], realtime: list[Unit]) -> bool:
        """Rule 2 for best-effort programs that run at once."""
        most, pairs = self._classes.slowdown, self.pairs
        return all(
            sum(pairs.get((program, other), UNBOUNDED) for other in programs) <= most
            for program in {unit.program for unit in realtime}
        )

    def _within_budget(
        self, ready: ReadySet, state: ProgramState, workers: Sequence[int], limit: int, now: int
    ) -> Allowance | Hold:
        """The most rows that keep the budget and end before upcoming real-time rows start."""
        stage = ready.key[1]
        latency = state.latency[stage]
        due = None if self.share.due else self._upcoming.starts_at(now)
        if not latency.known:
            if due is not None and (until := self._upcoming.wait_until(self._classes.budget_ns, now)) is not None:
                return Hold(until)
            busy = self.units and self._budget_ns < UNBOUNDED
            return Hold(None) if busy else Allowance(workers, limit, limit)
        running, _ = self._workers.room(workers)
        length = longest_of(ready.first(limit, limit)) if latency.by_length else 0
        times = [latency.predict(rows, running, length) for rows in range(1, limit + 1)]
        left = self._budget_left(now)
        most_ns = left if due is None else min(left, due - self._workers.soonest(workers, now))
        in_time = [time <= most_ns for time in times]
        if not in_time[0]:
            return self._one_row(times[0], left, most_ns, workers, now)
        exact = in_time.index(False) if False in in_time else limit
        largest = max(rows for rows, kept in enumerate(in_time, 1) if kept)
        return Allowance(workers, exact if state.program.stages[stage].repeats else largest, exact)

    def _one_row(self, time: int, left: int, most_ns: int, workers: Sequence[int], now: int) -> Allowance | Hold:
        """Whether a unit of one row starts although it takes longer than it should. `left`: of the budget."""
        if most_ns < min(left, time) and (until := self._upcoming.wait_until(time, now)) is not None:
            return Hold(until)
        if time <= left:
            return Allowance(workers, 1, 1)
        if self.units:
            busy = len({unit.worker for unit in self.units.values()})
            return Hold(now + max(1, (time - left) // busy))
        realtime = self._realtime_units()
        if realtime and not self.share.due and time > max(left_ns(unit, now, whole=True) for unit in realtime):
            return Hold(None)
        return Allowance(workers, 1, 1)

    def _budget_left(self, now: int) -> int:
        """Nanoseconds of best-effort work that may be handed over beside what is."""
        return self._budget_ns - sum(left_ns(unit, now) for unit in self.units.values())

    def steps(self, steps: int, rows: Sequence[Row], size: int, stage: int, state: ProgramState, now: int) -> int:
        """At the end of each a best-effort unit can be recalled, so each has to be within the budget."""
        if steps == 1:
            return steps
        repeats = state.program.stages[stage].repeats
        if (due := self._upcoming.starts_at(now)) is not None:
            stages = [stage] * steps if repeats else range(stage, stage + steps)
            times = accumulate(state.latency[one].predict(size) for one in stages)
            steps = max(1, sum(takewhile(bool, (now + time <= due for time in times))))
        if repeats:
            return steps
        left = self._budget_left(now)
        following = (latency.predict(size) for latency in state.latency[stage + 1 : stage + steps])
        return next((place for place, time in enumerate(following, 1) if time > left), steps)

    # whether a unit continues

    def preempts(self, unit: Unit) -> bool:
        """Also one behind others on its worker: it ends with its first stage or step."""
        if unit.klass is not _BEST_EFFORT or unit.id in self._of_share:
            return False
        padding = self._padding()
        return padding is not None and padding.get(unit.worker) != unit.program

    def _padding(self) -> dict[int, int] | None:
        """In real-time mode the workers that continue with best-effort units, and their programs; None: all continue.

        Together they keep rule 2. The first worker is tried first, so that from step to step it is the same ones.
        """
        realtime, found = self._realtime_units(), dict[int, int]()
        if self._realtime_waits():
            return found
        if not realtime:
            return None
        first = {unit.worker: unit.program for unit in reversed(self.units.values())}
        for worker, program in sorted(first.items()):
            if self._slows_little([*found.values(), program], realtime):
                found[worker] = program
        return found

    # accounts

    def started(self, unit: Unit) -> None:
        super().started(unit)
        if unit.klass is _BEST_EFFORT:
            self._upcoming.best_effort_started()

    def forget(self, program: int) -> None:
        super().forget(program)
        self._upcoming.forget(program)


def left_ns(unit: Unit, now: int, *, whole: bool = False) -> int:
    """Predicted time until a unit has ended, or can be recalled where it is one of several steps; `whole`: its end.

    Stages that it has yet to run count where they are longer: its worker begins them by itself.
    """
    begun = max(0, now - unit.begins)
    if whole or unit.steps == 1 or unit.recalled:
        return max(0, unit.predicted - begun)
    if unit.times:
        stage, left = running_stage(unit, now)
        return max(left, *unit.times[stage + 1 :], 0)
    step = max(1, unit.predicted // unit.steps)
    return step - begun % step


def kept_worker(device: DeviceSpec) -> int | None:
    """The worker that is kept free of best-effort work: that of the highest priority, then the largest.

    None where one unit runs at a time.
    """
    workers = device.workers
    if min(len(workers), device.max_running) == 1:
        return None
    return max(range(len(workers)), key=lambda worker: (-workers[worker].priority, workers[worker].capacity, worker))
