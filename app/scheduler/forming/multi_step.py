"""Units of several stages or steps, which a worker runs by itself: how many, and when a unit must end early.

A unit runs through all boundaries at which nothing would change. It is recalled if a row should leave it, if others
should join it, or if other rows take precedence or their turn; or it is to end when its next row does. Either message
may reach the worker too late: then the unit has continued, and the next Step repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from app.scheduler.forming.order import Order
from app.scheduler.forming.share import Share
from app.scheduler.policies import Policy
from app.scheduler.policies.offer import JoinOffer
from app.scheduler.rows.batches import whole
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level, ReadySet
from app.scheduler.types import Klass, Row, Stage, Unit
from app.scheduler.workers import Workers

TURN_NS = 5_000_000  # a unit of a cell runs so long before it is another program's turn: to change costs up to 1 ms
_CELLS_NS = 15_000_000  # and so much longer where only rows of other cells wait that were admitted for no deadline


def steps_left(row: Row, cell: Stage) -> int:
    """The most steps that a row has left at its cell: a cell may end it earlier."""
    most, length = cell.most_steps, 0 if cell.own_steps else row.length
    return min(length or most, most or length) - row.steps


def steps_of(rows: Sequence[Row], size: int, stage: int, state: ProgramState, policy: Policy, worker: int) -> int:
    """How many steps or stages a worker is to run by itself: until something would change at a boundary.

    `rows` are already launched in the batch table, and run as a batch of `size`.
    """
    stages = state.program.stages
    cell = stages[stage].repeats
    if state.queue.waiting[rows[0].call.klass] and _takes_more(len(rows), stage, state, policy, worker):
        return 1  # others may join at the next boundary
    if cell:
        return max(1, min(steps_left(row, stages[stage]) for row in rows))
    if not whole(rows):
        return 1  # the other part of the batch waits at one of the next boundaries, or will
    steps = 1
    for following in range(stage + 1, len(stages)):
        fits = size <= state.capacity[following][worker]
        if stages[following].repeats or not fits or not policy.passes_through(state.estimates, following, rows):
            break
        steps += 1
    return steps


def continues_without(rows: Sequence[Row], stage: int, state: ProgramState) -> bool:
    """Whether a worker is to continue with the other rows when rows of a unit end at a cell.

    It does for real-time units while none of their class wait: a row that waits takes the place of one that ends, in a
    full unit too. Best-effort units end, so that their time is accounted for.
    """
    klass = rows[0].call.klass
    return klass is Klass.REALTIME and state.program.stages[stage].repeats and not state.queue.waiting[klass]


class Until(Enum):
    """When a unit of several stages or steps is to end."""

    COMPLETE = "after all its steps"
    ROW_ENDS = "when its next row ends, because other rows wait to join"
    NOW = "with the running stage or step"


def until(unit: Unit, state: ProgramState, policy: Policy, ready: ReadySet | None, room: int) -> Until:
    """When a unit is to end so that a row can leave it, or others of its class can join it.

    `ready`: the rows of its class that wait at its cell, None if its stage is no cell. `room`: new rows that may start.
    """
    if not all(row.call.alive for row in unit.rows):
        return Until.NOW
    if ready is None and not whole(unit.rows):
        return Until.NOW  # rows have joined its batch: it waits at the next boundary until they have caught up
    if not state.queue.waiting[unit.klass]:
        return Until.COMPLETE
    fits = room > 0 and _takes_more(len(unit.rows), unit.stage, state, policy, unit.worker)
    if ready is None:
        return Until.NOW if fits else Until.COMPLETE
    return Until.NOW if fits and _worth_it(unit, state, policy, ready, room) else Until.ROW_ENDS


def _worth_it(unit: Unit, state: ProgramState, policy: Policy, ready: ReadySet, room: int) -> bool:
    """Whether the policy would end a running unit of a cell for the rows that wait there.

    Always true if times are unknown, if rows wait at earlier stages, and for a program of one unit (a decoder): the
    times of its steps do not include reading prompts, and how much a row writes is not known. Predictions from the most
    that it may write would let fewer rows join, and delay first tokens.
    """
    latency, rows = state.estimates.latency[unit.stage], len(unit.rows)
    cell = state.program.stages[unit.stage]
    joiners = min(ready.count, room, _most(unit.stage, state, unit.worker) - rows)
    if not latency.known or state.program.one_unit or state.queue.waiting[unit.klass] > ready.count:
        return True
    stay = [more for row in unit.rows if (more := steps_left(row, cell) - unit.course.steps) > 0]
    return policy.joins(
        JoinOffer(
            left=unit.course.steps - unit.course.progress,
            ending=rows - len(stay),
            stay=stay,
            joiners=joiners,
            steps=max(1, steps_left(ready.head(), cell)),
            time=lambda rows: latency.compute(rows, unit.forecast.running),
            boundary_ns=latency.handover.ns,
        )
    )


class MultiStep:
    """Of one device: which of its units must end early, and which ones workers have continued by themselves."""

    def __init__(
        self, ledger: Ledger, workers: Workers, order: Order, share: Share, policies: Mapping[int, Policy]
    ) -> None:
        self._policies = policies
        self._ledger = ledger
        self._workers = workers
        self._order = order
        self._share = share
        self.wake_at: int | None = None  # when to call `recall` again

    def recall(self, now: int) -> tuple[list[Unit], list[Unit]]:
        """The units that are to end with the running step or stage, and those to end when their next row ends."""
        waiting, self.wake_at = self._waiting(), None
        recalled: list[Unit] = []
        at_next_row: list[Unit] = []
        for unit in list(self._workers.multi_step.values()):
            end = self._until(unit, waiting, now)
            if end is Until.NOW:
                self._workers.recall(unit, now)
                recalled.append(unit)
            elif end is Until.ROW_ENDS and unit.course.continue_without:
                unit.course.continue_without = False
                at_next_row.append(unit)
        return recalled, at_next_row

    def _until(self, unit: Unit, waiting: Collection[tuple[Level, int, bool]], now: int) -> Until:
        state, own = self._ledger.states[unit.program], self._order.level(unit.rows[0])  # in order of service
        before = any(level < own for level, *_ in waiting)
        if before or (unit.klass is Klass.BEST_EFFORT and self._share.preempts(unit)):
            return Until.NOW
        cell = state.program.stages[unit.stage].repeats
        others = [patient for level, program, patient in waiting if level == own and program != unit.program]
        if cell and others:
            ends = unit.course.turn_ends + (_CELLS_NS if all(others) else 0)
            if ends <= now:
                return Until.NOW
            self.wake_at = earlier(self.wake_at, ends)
        ready = self._ledger.ready.at((unit.program, unit.stage, 0), unit.klass) if cell else None
        return until(unit, state, self._policies[unit.program], ready, self._room(unit.program, unit.klass))

    def _waiting(self) -> list[tuple[Level, int, bool]]:
        """The level and program of each set's first row, if there is room for it: the end of a unit makes none; and
        whether it waits at a cell, with no deadline.
        """
        states, found = self._ledger.states, []
        for ready in self._ledger.ready.nonempty:
            program, stage, _ = ready.key
            for row in ready.first(1, self._room(program, ready.klass)):
                patient = states[program].program.stages[stage].repeats and row.call.deadline is None
                found.append((self._order.level(row), program, patient))
        return found

    def _room(self, program: int, klass: Klass) -> int:
        """New rows of a program and class that may start."""
        return (self._share if klass is Klass.BEST_EFFORT else self._ledger).room(self._ledger.states[program])


def _takes_more(rows: int, stage: int, state: ProgramState, policy: Policy, worker: int) -> bool:
    """Whether others may join so many rows at the next boundary."""
    joins = state.program.stages[stage].repeats or policy.merges
    return joins and rows < _most(stage, state, worker)


def _most(stage: int, state: ProgramState, worker: int) -> int:
    """The largest unit of a worker at a stage."""
    return min(state.full[stage], state.capacity[stage][worker])


def earlier(one: int | None, other: int | None) -> int | None:
    """Of two times, where None is never."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
