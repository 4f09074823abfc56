"""The loop that forms units, and its three seats.

`order` says which ready set is next, `share` how much of the device it may have while there is best-effort work, and
its program's `policy` how many rows start, or until when they are held. Rows of a failed unit run again as one unit,
without asking the policy. Calls with a row that would end after its deadline are dropped instead, and the policy is
asked again: an overloaded device that finished late work would do nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.scheduler.forming.multi_step import TURN_NS, continues_without, earlier, steps_left, steps_of
from app.scheduler.forming.order import Order
from app.scheduler.forming.share import Share
from app.scheduler.policies import Cut, Hold, Offer, Policy
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import ReadySet, longest_of
from app.scheduler.types import (
    ONE_STEP,
    Call,
    Course,
    DeviceSpec,
    Forecast,
    Formed,
    Klass,
    Operation,
    Reason,
    Row,
    Unit,
)
from app.scheduler.workers import Workers

_BEST_EFFORT = Klass.BEST_EFFORT  # looked up once, used per unit


class Loop:
    """Of one device. Takes rows from the ledger's ready table and hands units to the workers."""

    def __init__(
        self,
        device: DeviceSpec,
        ledger: Ledger,
        workers: Workers,
        order: Order,
        share: Share,
        policies: Mapping[int, Policy],
    ) -> None:
        self._multi_step = device.multi_step
        self._push_depth = device.push_depth
        self._ledger = ledger
        self._workers = workers
        self._order = order
        self._share = share
        self._policies = policies
        self._next = 0  # the next unit's id
        self._best_effort = False  # such rows wait or run: only then `share` limits anything
        self._joins_later = False  # rows wait to join a unit of their cell that runs

    def run(self, start: list[Unit], now: int) -> int | None:
        """Append to `start` all units that can start. Returns when to ask again if nothing happens before, or None."""
        ledger, workers, share = self._ledger, self._workers, self._share
        held: list[ReadySet] = []
        wake_at: int | None = None
        decision: Cut | Hold
        sets = ledger.ready.nonempty
        self._best_effort, self._joins_later = bool(share.units), False
        for waiting in sets:
            if waiting.klass is _BEST_EFFORT:
                self._best_effort = True
        while sets and not workers.full:  # mostly full: then nothing is asked
            ready: ReadySet | None
            if len(sets) == 1:  # nearly always: there is no choice
                (ready,) = sets
                ready = None if ready in held else ready
            else:
                ready = self._order.next(held, now)
            offer = None if ready is None else self._offer(ready, now)
            if ready is None or offer is None:
                if ready is not None or self._joins_later:
                    wake_at = earlier(wake_at, workers.next_opening(now))
                break
            if not offer.rows:
                decision = Hold(offer.until)
            elif ready.again:
                decision = Cut(offer.exact, 1, Formed.RETRY)
            else:
                decision = self._policies[ready.key[0]].decide(offer, now)
            if isinstance(decision, Hold):  # rows behind these at the same key are held, too, unless they have room
                held += ledger.ready.alike(ready) if offer.room + ready.started > 0 else [ready]
                wake_at = earlier(wake_at, decision.until)
                continue
            if offer.exact < decision.size < offer.rows and not ready.again:
                decision = decision._replace(size=offer.rows)
            if ledger.deadlines.heap and (late := self._late(offer, decision, now)):
                for call in late:
                    ledger.drop(call, Reason.DEADLINE_UNREACHABLE)
                self._remove_dropped(start, now)
                held.clear()  # they may have been held because of the dropped calls
                continue
            start.append(self._start(offer, decision, now))
            if held:
                held = [other for other in held if _not_behind(other, ready)]
        if self._best_effort:
            share.end(held)
        return wake_at

    def _offer(self, ready: ReadySet, now: int) -> Offer | None:
        """What a unit of this set may have of the device: nothing while `rows` is 0. None: no worker is usable."""
        ledger, workers, share = self._ledger, self._workers, self._share
        usable = workers.usable(now)
        if not usable:
            return None
        program, stage, _ = ready.key
        state = ledger.states[program]
        offer = Offer(ready, state, ledger, workers, usable, state.full[stage])
        if state.program.one_unit and any(unit.program == program for unit in workers.units.values()):
            return offer  # until the running one ends
        if self._push_depth > 1 and offer.cell:
            offer.usable = [one for one in usable if not workers.has_cell(one, program, stage, ready.klass)]
            if not offer.usable:
                self._joins_later = True
                return offer
        best_effort = ready.klass is _BEST_EFFORT
        if self._best_effort and not best_effort and not self._policies[program].workers(1):
            offer.usable = share.for_realtime(offer.usable)
        offer.room = share.room(state) if best_effort else ledger.room(state)
        capacity, able = state.capacity[stage], offer.room + ready.started
        one = len(offer.usable) == 1  # nearly always
        largest = capacity[offer.usable[0]] if one else max(map(capacity.__getitem__, offer.usable))
        offer.rows = offer.exact = min(largest, able, offer.full)
        if best_effort and offer.rows:
            share.limit(offer, now)
        return offer

    def _late(self, offer: Offer, cut: Cut, now: int) -> list[Call]:
        """The calls with a row in this unit that would end after its deadline."""
        if cut.reason is Formed.RETRY:
            return []
        _, begins, running = self._workers.place(offer.usable, cut.size, offer.state.capacity[offer.stage], now)
        rows = offer.ready.similar(cut.rows, cut.shorter) if cut.shorter >= 0 else offer.first(cut.rows)
        ends = begins + offer.state.estimates.time(cut.size, offer.stage, running, longest_of(rows), begins - now)
        late = {call.id: call for row in rows if (call := row.call).deadline and call.deadline < ends}
        return list(late.values())

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
            self._share.units.pop(unit.id, None)
            self._ledger.forget_if_over(self._ledger.states[unit.program])

    # the units

    def _start(self, offer: Offer, cut: Cut, now: int) -> Unit:
        """Take the rows of a cut from their set, and hand them to a worker as one unit."""
        ready, state, batches, order = offer.ready, offer.state, offer.state.batches, self._order
        (program, stage, bucket), klass = ready.key, ready.klass
        if cut.divide and batches is not None:
            batches.divide(offer.first(offer.neighbours().here), cut.divide)
        rows = ready.take_similar(cut.rows, cut.shorter) if cut.shorter >= 0 else ready.take(cut.rows, offer.room)
        size = max(cut.size, len(rows))
        worker, begins, running = self._workers.place(offer.usable, size, state.capacity[stage], now)
        latency = offer.state.estimates.latency[stage]
        length = longest_of(rows) if latency.by_length else 0
        operation = Operation.NEW if batches is None else batches.launch(rows, stage, bucket, now, cut.joins)
        self._ledger.start(rows, state)
        if cut.divide:
            operation = Operation.SPLIT
        forecast = Forecast(latency.predict(size, running, length, begins - now), begins, running, length)
        unit = Unit(
            self._next, worker, program, stage, rows, size, cut.reason, now, forecast, ONE_STEP, operation, klass
        )
        if state.program.stages[stage].repeats:
            state.last_cell, order.turn_ends[klass] = self._next, 0
        else:  # the others' turn is as long as that of a cell, in units of however few rows
            ends = order.turn_ends[klass] = order.turn_ends[klass] or begins + TURN_NS
            if begins + forecast.predicted >= ends:
                order.last[klass] = self._next
        if batches is not None and self._multi_step and cut.reason is not Formed.RETRY:
            unit.course = self._course(unit, state)
            if unit.course.steps > 1:
                self._predict_steps(unit, state)
        self._next += 1
        self._workers.take(unit)
        if klass is _BEST_EFFORT:
            self._share.units[unit.id] = unit
        return unit

    def _course(self, unit: Unit, state: ProgramState) -> Course:
        """How far the worker is to run a unit by itself."""
        rows, stage = unit.rows, unit.stage
        steps = steps_of(rows, unit.size, stage, state, self._policies[unit.program], unit.worker)
        if unit.klass is _BEST_EFFORT:
            steps = self._share.steps(steps, unit, state)
        continue_without = continues_without(rows, stage, state)
        if steps == 1 and not continue_without:
            return ONE_STEP
        turn_ends = unit.forecast.begins + TURN_NS if state.program.stages[stage].repeats else 0
        return Course(steps, continue_without=continue_without, turn_ends=turn_ends)

    def _predict_steps(self, unit: Unit, state: ProgramState) -> None:
        """Extend the forecast of the first step or stage to all of them."""
        stage, steps, forecast = unit.stage, unit.course.steps, unit.forecast
        first, *later = state.estimates.latency[stage : stage + steps]
        if not forecast.predicted:
            return
        size, running, length = unit.size, forecast.running, forecast.length
        if state.program.stages[stage].repeats:
            forecast.predicted += (steps - 1) * first.compute(size, running, length)
            return
        forecast.times = (forecast.predicted, *(one.compute(size, running, length) for one in later))
        forecast.predicted = sum(forecast.times)

    def continued(self, unit: Unit, rows: list[Row], now: int) -> None:
        """Other rows of a real-time unit have ended at a cell, and its worker has continued with `rows`: their unit."""
        state = self._ledger.states[unit.program]
        latency, stage = state.estimates.latency[unit.stage], state.program.stages[unit.stage]
        batches = state.batches
        assert batches is not None  # of a program with a cell
        steps = max(1, min(steps_left(row, stage) for row in rows))
        length = longest_of(rows) if latency.by_length else 0
        predicted = steps * latency.compute(len(rows), unit.forecast.running, length)
        following = replace(
            unit,
            rows=rows,
            size=len(rows),
            started=now,
            forecast=replace(unit.forecast, predicted=predicted, length=length),
            course=replace(unit.course, steps=steps, progress=0, recalled=False),
            operation=batches.launch(rows, unit.stage, 0, now, None),
        )
        self._workers.continued(following, now)


def _not_behind(held: ReadySet, ready: ReadySet) -> bool:
    """Whether `held` is no later stage of the program of `ready`, from which rows have just started: then its hold
    may no longer apply.
    """
    return held.key[0] != ready.key[0] or held.key[1] <= ready.key[1]
