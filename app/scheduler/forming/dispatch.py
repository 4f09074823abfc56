"""Forms units: chooses a key, rows of it, and a worker.

While a worker is usable, `order` says which ready set is next, and `share` how much of the device it may have now. Rows
of a failed unit run again as one unit. For other rows the key's policy cuts a unit, or holds the key until a time.
Calls with a row that would end after its deadline are dropped instead, and the policy is asked again: an overloaded
device that finished late work would do nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.forming.multi_step import MultiStep, continues_without, steps_of
from app.scheduler.forming.order import Order
from app.scheduler.forming.share import Allowance, Share
from app.scheduler.forming.views import Views
from app.scheduler.forming.workers import Workers
from app.scheduler.policies import Cut, Hold
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Key, ReadySet, longest_of
from app.scheduler.types import DeviceSpec, Formed, Operation, Reason, Row, Unit


class Dispatch:
    """Of one device. Takes rows from the ledger's ready table and hands units to the workers."""

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers, order: Order, share: Share) -> None:
        self._device = device
        self._ledger = ledger
        self._workers = workers
        self._order = order
        self._share = share
        self.views = Views(device, ledger, workers, share)
        self.multi_step = MultiStep(ledger, workers, order, share)
        self._next_unit = 0
        self._both_classes = False  # there is best-effort work
        self.hold_best_effort = False  # start no best-effort unit in this step, see `Scheduler.step`
        self.held_best_effort = False  # one could have started in this step
        self._joins_later = False  # rows wait to join a unit of their cell that runs

    def run(self, start: list[Unit], now: int) -> int | None:
        """Append to `start` all units that can start. Returns when to ask again if nothing happens before, or None."""
        workers, ledger = self._workers, self._ledger
        self._both_classes = ledger.best_effort > 0 or bool(self._share.units)
        held: list[ReadySet] = []
        wake_at: int | None = None
        self._joins_later = False
        while ledger.ready.nonempty and not workers.full:  # mostly full: then nothing is asked
            ready = self._order.next(held, now)
            if ready is None:
                wake_at = _earlier(wake_at, workers.next_opening(now)) if self._joins_later else wake_at
                break
            usable = workers.usable(now)
            if not usable:
                wake_at = _earlier(wake_at, workers.next_opening(now))
                break
            drops = len(ledger.drops)
            hold = self._serve(ready, usable, held, start, now)
            if len(ledger.drops) > drops:
                self._remove_dropped(start, now)
                held.clear()  # they may have been held because of the dropped calls
            if hold is None and held:  # earlier rows have started, so holds at later stages may no longer apply
                held = [other for other in held if _not_behind(other, ready)]
            elif hold is not None:
                held.append(ready)
                wake_at = _earlier(wake_at, hold.until)
        if self._both_classes:
            self._share.realtime_waits = any(not other.klass and other not in held for other in ledger.ready.nonempty)
        return wake_at

    def _remove_dropped(self, start: list[Unit], now: int) -> None:
        """Calls were dropped that have rows in units of this very step. Take these rows out, and remove empty units."""
        for unit in list(start):
            gone = [row for row in unit.rows if not row.call.alive]
            if not gone:
                continue
            left = [row for row in unit.rows if row.call.alive]
            for row in gone:
                self._ledger.end(row)
            if left:
                unit.rows = left
                continue
            start.remove(unit)
            self._workers.give_back(unit.id, now)
            self._share.ended(unit)
            state = self._ledger.states[unit.program]
            state.units -= 1
            self._ledger.forget_if_over(state)

    def _serve(
        self, ready: ReadySet, usable: Sequence[int], held: list[ReadySet], start: list[Unit], now: int
    ) -> Hold | None:
        """Start one unit of this key, or return until when it is held, and add sets held with it to `held`."""
        program, stage, _ = ready.key
        state = self._ledger.states[program]
        if state.program.one_unit and state.units:
            return Hold(None)  # until the running one ends
        if state.program.stages[stage].repeats and self._device.push_depth > 1:
            usable = [worker for worker in usable if not self._workers.has_cell(worker, program, stage, ready.klass)]
            if not usable:
                self._joins_later = True
                return Hold(None)
        if self._both_classes and not ready.klass and not state.policy.owns_device:
            usable = self._share.for_realtime(usable)
        capacities = _capacities(state.capacity[stage], usable)
        # New rows need room on the device; rows at a cell or a later stage that have started have theirs.
        room = self._share.room(state, ready.klass)
        started = ready.started if stage or state.program.stages[0].repeats else 0
        limit = min(capacities[0], room + started)
        if limit < 1:
            return Hold(None)
        allowance: Allowance | None = None
        if ready.klass:
            allowed = self._allow_best_effort(ready, state, usable, limit, now)
            if isinstance(allowed, Hold):  # shorter rows behind these, at the same key, would fit into the budget
                held += self._ledger.ready.alike(ready)
                return allowed
            allowance, usable, limit = allowed, allowed.workers, allowed.rows
            capacities = [min(limit, capacity) for capacity in _capacities(state.capacity[stage], usable)]
        if ready.again:
            group = ready.take(limit if allowance is None else allowance.exact, room)
            for row in group:
                row.group = 0
            self._start(ready.key, group, Cut(len(group), len(group), Formed.RETRY), usable, start, now)
            return None
        view = self.views.of(ready, state, usable, limit, room + started, now)
        decision = state.policy.decide(view, capacities, now)
        if isinstance(decision, Hold):
            held += self._ledger.ready.alike(ready)
            return decision
        if allowance is not None and allowance.exact < decision.size < allowance.rows:
            decision = decision._replace(size=allowance.rows)
        if self._ledger.deadlines.heap and self._drop_late(ready, state, decision, usable, now):
            return None  # fewer rows wait now: `run` asks again
        if decision.divide and state.batches is not None and view.neighbours is not None:
            state.batches.divide(ready.first(view.neighbours.here, room), decision.divide)
        picked = decision.shorter >= 0
        rows = ready.take_similar(decision.rows, decision.shorter) if picked else ready.take(decision.rows, room)
        self._start(ready.key, rows, decision, usable, start, now)
        return None

    def _allow_best_effort(
        self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, now: int
    ) -> Allowance | Hold:
        """How much a best-effort unit may have now. The driver may have asked to start none in this step."""
        found = self._share.for_best_effort(ready, state, usable, limit, now)
        if isinstance(found, Hold):
            return found
        if self.hold_best_effort:
            self.held_best_effort = True
            return Hold(None)
        capacity = state.capacity[ready.key[1]]
        return found.within(max(capacity[worker] for worker in found.workers))

    def _drop_late(self, ready: ReadySet, state: ProgramState, cut: Cut, usable: Sequence[int], now: int) -> bool:
        """Drop the calls with a row in this unit that would end after its deadline. Returns whether there were any."""
        stage = ready.key[1]
        _, begins, running = self._workers.place(usable, cut.size, state.capacity[stage], now)
        if cut.shorter >= 0:
            rows = ready.similar(cut.rows, cut.shorter)
        else:
            rows = ready.first(cut.rows, self._share.room(state, ready.klass))
        ends = begins + state.time(cut.size, stage, running, longest_of(rows), begins - now)
        late = {call.id: call for row in rows if (call := row.call).deadline and call.deadline < ends}
        for call in late.values():
            self._ledger.drop(call, Reason.DEADLINE_UNREACHABLE)
        return bool(late)

    def _start(self, key: Key, rows: list[Row], cut: Cut, usable: Sequence[int], start: list[Unit], now: int) -> None:
        """Hand the rows to a worker as one unit."""
        program, stage, bucket = key
        state = self._ledger.states[program]
        size = max(cut.size, len(rows))
        worker, begins, running = self._workers.place(usable, size, state.capacity[stage], now)
        length = longest_of(rows) if state.latency[stage].by_length else 0
        batches = state.batches
        self._ledger.start(rows, state)
        operation = Operation.NEW if batches is None else batches.launch(rows, stage, bucket, now, cut.joins)
        if cut.divide:
            operation = Operation.SPLIT
        steps, continue_without = 1, False
        if batches is not None and self._device.multi_step and cut.reason is not Formed.RETRY:
            steps = steps_of(rows, size, stage, state, worker)
            if rows[0].call.klass:
                steps = self._share.steps(steps, size, stage, state, now)
            continue_without = continues_without(rows, stage, state)
        times: tuple[int, ...] = ()
        predicted = state.latency[stage].predict(size, running, length, begins - now)
        if steps > 1 and predicted:
            predicted, times = state.unit_times(predicted, stage, steps, size, running, length)
        unit = Unit(
            id=self._next_unit,
            worker=worker,
            program=program,
            stage=stage,
            rows=rows,
            size=size,
            reason=cut.reason,
            started=now,
            predicted=predicted,
            begins=begins,
            times=times,
            running=running,
            steps=steps,
            length=length,
            operation=operation,
            continue_without=continue_without,
            klass=rows[0].call.klass,
        )
        self._next_unit += 1
        self._workers.take(unit)
        if unit.klass:
            self._share.started(unit)
        start.append(unit)


def _not_behind(held: ReadySet, ready: ReadySet) -> bool:
    """Whether `held` is no later stage of the program of `ready`, from which rows have just started."""
    return held.key[0] != ready.key[0] or held.key[1] <= ready.key[1]


def _capacities(capacity: Sequence[int], usable: Sequence[int]) -> list[int]:
    """The capacities of the usable workers, largest first."""
    if len(usable) == 1:
        return [capacity[usable[0]]]
    return sorted((capacity[worker] for worker in usable), reverse=True)


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
