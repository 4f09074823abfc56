"""Real-time work before best-effort work, with preemption at stage boundaries: the preset `reef` (REEF, R1 to R8).

The scheduler is in real-time mode while a real-time row waits or runs, else in normal mode. Work on a device can only
be taken back at a boundary, so little best-effort work is handed to it:

    normal mode      Best-effort units start on idle workers while the predicted times of all that run add up to at most
                     the budget. If one row alone takes longer than the budget, units of one row run one at a time. A
                     unit of several stages or steps counts with the running one only, since it can be recalled there.
                     Of several workers one of the best is kept free of best-effort work.
    real-time mode   Best-effort units start only if no real-time row waits and they fit into what real-time work leaves
                     free (dynamic kernel padding, by admission):
                     rule 1  the unit is within the budget, or it is the only one and ends before real-time work does
                     rule 2  it and those that run slow no real-time program by more than the bound. The slowdowns
                             measured for each pair are added up, because three at once were not measured.
                     Running units that break rule 2, or run while a real-time row waits, are recalled.

Real-time rows that cannot start yet, because the device has no room or their policy holds them, do not count as waiting
(`upcoming`). Best-effort units must end before such rows may start. If no worker is kept free, the same holds for the
next expected call of a program with regular real-time calls.
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
UNBOUNDED = 1 << 62  # as a budget: no bound; as a slowdown: the pair was not measured


class Reef(Gate):
    """The preset `reef`."""

    separates = True
    fills = True
    overtakes = True

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        super().__init__(device, ledger, workers)
        self._most = max(1, min(len(device.workers), device.max_running) - 1)  # workers that may run best-effort units
        self._upcoming = Upcoming()
        self._budget_ns = device.classes.budget_ns
        self.best = best_workers(device)

    # order

    def rank(self, ready: ReadySet, row: Row) -> tuple[int, ...]:
        """Best-effort programs of one priority take turns."""
        if not row.call.klass:
            return rank(row)
        klass = -1 if self.share.due else _BEST_EFFORT
        return (klass, row.call.priority, self.turns.tag(ready.key[0]), *row.order[1:])

    def level(self, row: Row) -> Level:
        return (row.call.klass, row.call.priority)

    # reports of the dispatcher

    def begin_step(self, now: int) -> None:
        self._upcoming.begin_step(now)

    def no_room(self, ready: ReadySet) -> None:
        if not ready.klass:
            self._upcoming.block(ready)

    def hold(self, ready: ReadySet, until: int | None) -> None:
        self._upcoming.hold(ready, until)

    def realtime_arrived(self, program: int, at: int) -> None:
        if not self.best:
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
        """One of the best workers, unless all of these are busy and another is idle."""
        best = [worker for worker in usable if worker in self.best]
        idle = [worker for worker in best if not self._workers.of(worker)]
        return idle or (usable if not best or self._workers.idle(usable) else best)

    def _realtime_waits(self) -> bool:
        """Whether real-time rows that could start are waiting."""
        waiting = sum(state.waiting - state.best_effort for state in self._ledger.states.values())
        return waiting > self._upcoming.waiting

    def _realtime_units(self) -> list[Unit]:
        return [unit for unit in self._workers.units.values() if unit.id not in self.best_effort_units]

    def _open_to_best_effort(self, usable: Sequence[int]) -> Sequence[int]:
        if not self.share.due:  # a unit pushed behind another would delay real-time calls that arrive meanwhile
            usable = [worker for worker in usable if not self._workers.of(worker)]
        busy = {unit.worker for unit in self.best_effort_units.values()}
        if len(busy) >= self._most:
            return [worker for worker in usable if worker in busy]
        free = self.best - busy
        return [worker for worker in usable if worker not in free] if len(free) == 1 else usable

    def _may_join(self, program: int, realtime: list[Unit]) -> bool:
        """Rule 2 for a unit that would start on an idle worker."""
        beside = {unit.worker: unit.program for unit in reversed(self.best_effort_units.values())}
        return self._slows_little([program, *beside.values()], realtime)

    def _slows_little(self, programs: Sequence[int], realtime: list[Unit]) -> bool:
        """Rule 2 for these best-effort programs, running at once."""
        most, pairs = self._classes.slowdown, self.pairs
        return all(
            sum(pairs.get((program, other), UNBOUNDED) for other in programs) <= most
            for program in {unit.program for unit in realtime}
        )

    def _within_budget(
        self, ready: ReadySet, state: ProgramState, workers: Sequence[int], limit: int, now: int
    ) -> Allowance | Hold:
        """The largest unit that keeps the budget and ends before upcoming real-time rows start."""
        stage = ready.key[1]
        latency = state.latency[stage]
        due = None if self.share.due else self._upcoming.starts_at(now)
        if not latency.known:
            if due is not None and (until := self._upcoming.wait_until(self._classes.budget_ns, now)) is not None:
                return Hold(until)
            busy = self.best_effort_units and self._budget_ns < UNBOUNDED
            return Hold(None) if busy else Allowance(workers, limit, limit)
        running, _ = self._workers.running_and_free(workers)
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
        """Whether a unit of one row starts although it takes longer than `most_ns`. `left`: of the budget."""
        if most_ns < min(left, time) and (until := self._upcoming.wait_until(time, now)) is not None:
            return Hold(until)
        if time <= left:
            return Allowance(workers, 1, 1)
        if self.best_effort_units:
            ending = sum(left_ns(unit, now) > 0 for unit in self.best_effort_units.values())
            if time > self._budget_ns:
                return Hold(None)  # only the end of a unit makes room
            return Hold(now + max(1, (time - left) // ending))
        realtime = self._realtime_units()
        if realtime and not self.share.due and time > max(left_ns(unit, now, whole=True) for unit in realtime):
            return Hold(None)
        return Allowance(workers, 1, 1)

    def _budget_left(self, now: int) -> int:
        """Nanoseconds of best-effort work that may be handed over in addition."""
        return self._budget_ns - sum(left_ns(unit, now) for unit in self.best_effort_units.values())

    def steps(self, steps: int, rows: Sequence[Row], size: int, stage: int, state: ProgramState, now: int) -> int:
        """A unit can be recalled after each stage or step, so each single one must be within the budget."""
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
        """Recall it in real-time mode unless it keeps rule 2. One behind others ends with its first stage or step."""
        if unit.klass is not _BEST_EFFORT or unit.id in self._of_share:
            return False
        padding = self._padding()
        return padding is not None and padding.get(unit.worker) != unit.program

    def _padding(self) -> dict[int, int] | None:
        """In real-time mode: the workers whose best-effort units may continue, with their programs. None: all may.

        Together they keep rule 2. Workers are tried in order, so that the result is stable from step to step.
        """
        realtime, found = self._realtime_units(), dict[int, int]()
        if self._realtime_waits():
            return found
        if not realtime:
            return None
        first = {unit.worker: unit.program for unit in reversed(self.best_effort_units.values())}
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
    """Predicted time until a unit ends or, if it has several stages or steps, can be recalled. `whole`: until it ends.

    A later stage that takes longer counts instead, because the worker begins it by itself.
    """
    begun = max(0, now - unit.begins)
    if whole or unit.steps == 1 or unit.recalled:
        return max(0, unit.predicted - begun)
    if unit.times:
        stage, left = running_stage(unit, now)
        return max(left, *unit.times[stage + 1 :], 0)
    step = max(1, unit.predicted // unit.steps)
    return step - begun % step


def best_workers(device: DeviceSpec) -> frozenset[int]:
    """The workers of the highest priority, and the largest of these: one of them is kept free of best-effort work.

    Empty if only one unit runs at a time.
    """
    if min(len(device.workers), device.max_running) == 1:
        return frozenset()
    ranks = [(-worker.priority, worker.capacity) for worker in device.workers]
    return frozenset(worker for worker, rank in enumerate(ranks) if rank == max(ranks))
