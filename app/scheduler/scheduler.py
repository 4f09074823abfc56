"""The scheduler. Its inputs say what happened and what time it is; its output, a Step, says what to do.

1. Time arrives only as `now`: integer nanoseconds on the driver's clock, never backwards.
2. Effects leave only in a Step. Nothing here waits, sends, allocates tensors or logs.
3. Payloads never enter: a row is a slot number and a length.
4. Equal inputs give equal Steps. No clock, no randomness, no iteration over unordered sets.

The driver feeds inputs, calls `step(now)` once for all inputs of one turn, and carries out all of the Step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from app.scheduler.admission import Admission
from app.scheduler.estimates.curve import learn
from app.scheduler.estimates.pairs import PairSlowdowns
from app.scheduler.estimates.profile import Profile
from app.scheduler.forming.loop import Loop
from app.scheduler.forming.multi_step import MultiStep, earlier
from app.scheduler.forming.order import Order
from app.scheduler.forming.share import Share
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import Policy, policy_class
from app.scheduler.rows import outcomes
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import (
    LOWEST_PRIORITY,
    Call,
    DeviceSpec,
    Drop,
    Fault,
    Klass,
    Outcome,
    Program,
    Reason,
    Refusal,
    Step,
    Unit,
)
from app.scheduler.workers import Workers


class Scheduler:
    """The scheduler of one device. Its rules are at the top of this module."""

    def __init__(self, device: DeviceSpec, order: type[Order] = Order, share: type[Share] = Share) -> None:
        """`order`, `share`: who is next, and how much it may have; others than these are baselines to compare with."""
        if not device.workers:
            raise ValueError("workers: expected at least one")
        self.device = device
        self._ledger = Ledger(device.max_alive)
        self._states = self._ledger.states
        #: By program, read-only. A closed program stays until its last call has left.
        self.states: Mapping[int, ProgramState] = MappingProxyType(self._states)
        #: By program; that of a forgotten program stays until another program comes.
        self.policies: dict[int, Policy] = {}
        ledger, policies = self._ledger, self.policies
        self._workers = workers = Workers(device)
        #: By id, those handed out and not finished, oldest first; read-only.
        self.units: Mapping[int, Unit] = workers.units
        self._share = seat = share(device, ledger, workers)
        by_rank = order(ledger.ready, self._states, device.max_running)
        self._admission = Admission(device, ledger, workers, policies)
        self._loop = Loop(device, ledger, workers, by_rank, seat, policies)
        self._multi_step = MultiStep(ledger, workers, by_rank, seat, policies)
        self._wake_at: int | None = None  # of the last Step

    # inputs

    def add_program(self, program: Program, now: int) -> None:
        """Open a program to calls. Raises ValueError for a policy that is unknown or that this device cannot serve."""
        entry = None if program.length_buckets else self._ledger.ready.at((program.id, 0, 0), Klass.REALTIME)
        policy = policy_class(program.policy.name)()
        for ident in self.policies.keys() - self._states.keys():
            del self.policies[ident]
        policy.check(self.device, {other.name: other for other in self.policies.values()})
        self._states[program.id] = ProgramState(program, entry, self.device, policy.largest, now)
        self.policies[program.id] = policy

    def remove_program(self, program: int, now: int) -> None:
        """Close a program to new calls; it is forgotten when its last call has left."""
        state = self._states[program]
        state.closed = True
        self._ledger.forget_if_over(state)

    def admit(
        self, program: int, n: int, klass: Klass, deadline: int | None, now: int, priority: int = LOWEST_PRIORITY
    ) -> Refusal | None:
        """Whether a call of `n` rows is admitted now. Changes nothing.

        With its `priority` known, only work that is served before it counts against its deadline.
        """
        return self._admission.refusal(program, n, (klass, priority), deadline, now)

    def refused(self, program: int, n: int, now: int, klass: Klass = Klass.REALTIME) -> None:
        """A call of `n` rows was refused, for a full queue or its deadline. It counts in the arrival rate and demand.

        Otherwise the rate would be what is served, and a policy that follows the rate would never serve more. `n` 0:
        the call was refused before its rows were known, and counts as the mean of the calls that have not left.
        """
        state = self._states.get(program)
        if state is not None:
            queue = state.queue
            queue.asked[klass] += n or max(1, round((sum(queue.waiting) + queue.alive) / max(1, queue.calls)))

    def submit(self, call: Call, now: int) -> None:
        """A call enters: all its rows are put into the ready table. The caller has asked `admit` before.

        If the device was lost or the program removed since then, the next Step drops the call.
        """
        state = self._states.get(call.program)
        if self._ledger.lost or state is None:
            call.alive = False
            self._ledger.drops.append(Drop(call, Reason.DEVICE if self._ledger.lost else Reason.CLOSED))
        else:
            self._ledger.enter(call, state)

    def cancel(self, call_id: int, now: int) -> None:
        """The caller has gone: forget waiting rows, discard results of running ones. Unknown calls are ignored."""
        call = self._ledger.calls.get(call_id)
        if call is not None:
            queue = self._states[call.program].queue
            queue.patience[call.klass].leave(call.left, now - call.arrived, queue.waiting[call.klass])
            self._ledger.leave(call)

    def extend(self, call_id: int, deadline: int | None, now: int) -> None:
        """The call's answer has begun: from now on this is its deadline, or None. Unknown calls are ignored."""
        call = self._ledger.calls.get(call_id)
        if call is not None:
            call.deadline = deadline
            if deadline is not None:
                self._ledger.deadlines.add(deadline, call_id)

    def progressed(self, unit_id: int, steps: int, now: int) -> None:
        """The worker has made `steps` steps of a unit of several. Other units are ignored."""
        unit = self._workers.multi_step.get(unit_id)
        if unit is not None:
            unit.course.progress = max(unit.course.progress, min(steps, unit.course.steps - 1))

    def finished(self, outcome: Outcome, now: int) -> None:
        """A unit has ended, well or not. Outcomes of unknown units (a device lost earlier) are ignored.

        If its worker has continued with other rows, these are a unit of the same id.
        """
        unit = self._workers.give_back(outcome.unit_id, now)
        if unit is None:
            return
        state = self._states[unit.program]
        queue = state.queue
        if self._share.units:
            self._share.units.pop(unit.id, None)
        if outcome.error is None:
            state.failures = 0
            learn(state.estimates.latency, unit, outcome, now)
            alive = queue.alive
            if state.batches is None:
                self._ledger.end_rows(unit.rows, state)
            else:
                staying = outcomes.advance(self._ledger, unit, outcome, state)
                if outcome.continues:
                    self._loop.continued(unit, staying, now)
            queue.ended[unit.klass] += alive - queue.alive
        elif outcome.error is Fault.DEVICE:
            outcomes.lose(self._ledger, unit)
        else:
            outcomes.fail(self._ledger, unit, outcome.error, state)
        if state.closed:
            self._ledger.forget_if_over(state)

    def pair(self, pairs: PairSlowdowns, now: int) -> None:
        """Measured slowdowns of pairs of programs: they decide which best-effort units run beside real-time ones."""
        self._share.pairs = pairs

    def tick(self, now: int) -> None:
        """The rate monitor's window has closed."""
        for state in self._states.values():
            state.tick(now)

    def reprofile(self, program: int, profile: Profile, now: int, stage: int = 0) -> None:
        """A program's stage has been measured anew. Unknown programs are ignored: they may have been removed."""
        state = self._states.get(program)
        if state is not None:
            state.reprofile(profile, stage)

    def bound(self, program: int, max_alive: int, now: int) -> None:
        """Lower `max_alive` of a program, because its rows take more memory than was known.

        Rows that have started continue even beyond it; no others start until enough of them have ended.
        """
        state = self._states.get(program)
        if state is not None and max_alive < state.program.max_alive:
            state.bound(max_alive)

    def control(self, program: int, tables: ControlTables | None, now: int) -> None:
        """Set the control tables for the policy `adaptive`, which the driver has solved; None removes them."""
        state = self._states.get(program)
        if state is not None:
            state.estimates.set_control(tables)

    # the one output

    def step(self, now: int, *, hold: bool = False) -> Step:
        """What to do now, given all inputs so far.

        `hold`: start no best-effort unit, because the driver has not read all requests yet. `Step.held` says whether
        one could have started.
        """
        ledger = self._ledger
        self._share.hold, self._share.held = hold, False
        start: list[Unit] = []
        recall: Sequence[Unit] = ()
        end_at_next_row: Sequence[Unit] = ()
        if ledger.deadlines.heap:
            for call in ledger.deadlines.passed(now):
                ledger.drop(call, Reason.DEADLINE)
        wake_at: int | None = None
        if not self._ledger.lost and (ledger.ready.nonempty or self._share.units):
            wake_at = self._loop.run(start, now)
        if self._workers.multi_step:
            recall, end_at_next_row = self._multi_step.recall(now)
            sooner = recall or end_at_next_row  # their workers will be free sooner than predicted
            if sooner and self.device.push_depth > 1 and not self._ledger.lost:
                wake_at = self._loop.run(start, now)
                more, at_next_row = self._multi_step.recall(now)  # of what started, and of calls that were dropped
                recall, end_at_next_row = [*recall, *more], [*end_at_next_row, *at_next_row]
            wake_at = earlier(wake_at, self._multi_step.wake_at)
        if ledger.deadlines.heap:
            wake_at = earlier(wake_at, ledger.deadlines.next())
        if self._wake_at is not None and self._wake_at <= now:
            ledger.deadlines.woke(now - self._wake_at)
        self._wake_at = wake_at
        done, drops = ledger.done, ledger.drops
        if done or drops:
            ledger.done, ledger.drops = [], []
        return Step(start, done, drops, wake_at, recall, end_at_next_row, self._share.held)

    # what others may read

    @property
    def calls(self) -> Iterable[Call]:
        """Calls that have not left, in order of submission."""
        return self._ledger.calls.values()

    @property
    def leftovers(self) -> dict[str, int]:
        """What is still counted although no call is here and nothing runs: anything is a fault of the scheduler.

        Empty while there are calls or units.
        """
        if self._ledger.calls or self._workers.units:
            return {}
        return {name: count for name, count in self._ledger.counts().items() if count}

    def oldest(self, program: int, klass: Klass) -> int | None:
        """When the row of a program and class that has waited longest arrived; None if none waits."""
        return self._ledger.ready.oldest(program, klass)

    def waiting_by_stage(self, program: int) -> list[int]:
        """Rows of a program in the ready table, for each of its stages."""
        state = self._states.get(program)
        return self._ledger.ready.waiting_by_stage(program, len(state.program.stages)) if state else []
