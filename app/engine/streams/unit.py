"""Plans, launches and reports the steps of one unit on a device of streams: its stages, or its steps of a cell.

The next step is launched while one runs, but no more of them than take `push_ahead`. Steps are planned when the unit
begins and each time one has ended; a stop is checked then. When rows end, the unit ends, or reports them and continues
without them. If a step fails, the unit ends with the step before it, or fails if there is none. A batch that
runs WHOLE fails if any step fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from traceback import clear_frames
from typing import NamedTuple

from app.engine.device import Completion, Report, failed, fault_of
from app.engine.executor import NO_BOUND, WHOLE, Job, Ran, Stop
from app.engine.streams.cells import CellStreamExecutor
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.launch import CellLaunch, Launch, Planned
from app.engine.streams.threads import CLOSED, StreamWorker
from app.scheduler.types import Fault

MOST_AHEAD = 8  # steps launched behind the running one: each has pinned memory of its own


def most_steps(units: int) -> int:
    """Steps launched and not ended, of so many units of a worker: one runs, and each other has launched two at most."""
    return 1 + MOST_AHEAD + 2 * (units - 1)


class Failed(NamedTuple):
    """The result of a step that failed, in place of a `Ran`."""

    fault: Fault
    error: BaseException


class UnitRun:
    """One unit. `launch` runs on its worker's launcher thread, `_complete` on its completer, once for each step."""

    def __init__(self, job: Job, stop: Stop, worker: StreamWorker, report: Report, push_ahead_ns: int) -> None:
        executor = job.executor
        assert isinstance(executor, StreamExecutor)
        self.job, self.stop = job, stop
        self.worker = worker
        self.executor = executor
        self._report = report
        self._push_ahead_ns = push_ahead_ns
        self._cell = executor if isinstance(executor, CellStreamExecutor) else None
        # used by the launcher
        self._begun = False
        self._last: Launch | None = None
        self._stopped: Failed | None = None  # why the last step could not be launched
        # the next step to plan
        self._slots = list(job.slots)
        self._padding = job.size - len(job.slots)
        self._whole = job.stage == WHOLE and executor.activations is not None
        self._stage = 0 if self._whole or not executor.last else job.stage
        self._left = job.steps
        if self._whole:
            self._left = len(executor.calls) if self._cell is None else NO_BOUND
        self._done: list[int] = []  # at a cell: for each row, the steps that it will have made by then
        self._planned: deque[Planned] = deque()  # steps not launched yet
        self._first = True
        # steps that have run
        self._under_way = 0  # steps planned and not ended
        self._step_ns = 0  # the time of the last step
        self._rans: list[Ran] = []  # since the last report
        self._failed: Failed | None = None

    # planning: on the launcher's thread before the first step is launched, then on the completer's

    def _plan(self) -> bool:
        """Plan steps as far ahead as allowed. Returns whether there is a new one. Even a recalled unit makes one."""
        planned = False
        while self._left and self._under_way < self._most_under_way() and (self._first or not self._ends()):
            self._planned.append(self._next())
            self._under_way += 1
            self._first, planned = False, True
        return planned

    def _ends(self) -> bool:
        return self._failed is not None or self.stop.now

    def _most_under_way(self) -> int:
        if (self._cell is not None and self._cell.flags) or not self._push_ahead_ns:
            return 1
        return 1 + min(MOST_AHEAD, -(-self._push_ahead_ns // self._step_ns) if self._step_ns else 1)

    def _next(self) -> Planned:
        self._left -= 1
        slots, size = self._slots, len(self._slots) + self._padding
        if self._cell is None:
            self._stage += 1
            return Planned(slots, size, self._stage - 1)
        done = self._done
        self._done = [made + 1 for made in done]
        if self._cell.flags:
            return Planned(slots, size, 0, done)
        limits = self._cell.limits(slots)
        ends = [place for place, made in enumerate(self._done) if made >= limits[place]]
        if ends:
            self._leave(ends)
        return Planned(slots, size, 0, done, ends)

    def _leave(self, ends: Sequence[int]) -> None:
        """Rows at these positions end with the step planned last. The other rows continue, or the unit ends there."""
        gone = set(ends)
        staying = [place for place in range(len(self._slots)) if place not in gone]
        self._slots = [self._slots[place] for place in staying]
        self._done = [self._done[place] for place in staying]
        self._left = NO_BOUND if staying and (not self.stop.at_next_row or self._whole) else 0

    # launching

    def launch(self) -> None:
        """Launch the planned steps. Rows that have arrived are copied before."""
        try:
            self.executor.pool.copy_arrived(self.job.slots)
        except BaseException as exc:
            self.worker.health.lose(exc)
        if not self._begun:
            self._begun = True
            if self._cell is not None:
                self._done = [self._cell.rows.get(slot) or 0 for slot in self._slots]
            self._plan()
        while (plan := self._take()) is not None:
            self.worker.completer.send(self._complete, self._launch(plan))

    def _take(self) -> Planned | None:
        """The next planned step. When the device is closed, two threads may call this: see `_give_up`."""
        try:
            return self._planned.popleft()
        except IndexError:
            return None

    def _launch(self, plan: Planned) -> Launch | None:
        """Launch a step. None if it could not be launched; later ones cannot either."""
        health = self.worker.health
        if self._stopped is None and health.lost is not None:
            self._stopped = Failed(Fault.DEVICE, RuntimeError(health.lost))
        if self._stopped is not None:
            return None
        try:
            if self._cell is None:
                step = Launch(self.executor, self.worker, plan, self._last)
            else:
                step = CellLaunch(self._cell, self.worker, plan, self._last)
        except BaseException as exc:  # out of pinned memory, or worse
            fault = fault_of(exc)
            if fault is not Fault.OOM:
                fault = Fault.DEVICE
                health.lose(exc)
            self._stopped = Failed(fault, exc)
            return None
        self._last = step
        try:
            step.launch()
        except BaseException as exc:
            health.lose(exc)
        return step

    # its end

    def _complete(self, step: Launch | None) -> None:
        """Wait for the end of the oldest step, then plan further steps or report the unit."""
        result = self._result(step)
        self._under_way -= 1
        ended: Sequence[int] = ()
        if isinstance(result, Failed):
            self._failed = self._failed or result
        elif self._failed is None and step is not None:
            step.commit()
            self._rans.append(result)
            self._step_ns = result.infer_ns
            self.stop.made = len(self._rans)
            ended = result.ended
            if ended and self._cell is not None and self._cell.flags:
                self._leave(ended)
        if step is not None:
            if self.worker.health.lost is None:
                step.end()
            else:
                self.worker.health.held.append(step)
        if self._plan() and not self.worker.launcher.send(self.launch):
            self._give_up()
        if not self._under_way:
            self._send(continues=False)
        elif ended and not self._whole:
            self._send(continues=True)

    def _give_up(self) -> None:
        """The device has been closed, and its launcher ended: end the unit as if recalled, without its planned steps
        except those that the launcher still has in its queue. A unit that runs WHOLE fails.
        """
        while self._take() is not None:
            self._under_way -= 1
        self.stop.now = True
        if self._whole:
            self._failed = self._failed or Failed(Fault.MODEL, RuntimeError(CLOSED))

    def _result(self, step: Launch | None) -> Ran | Failed:
        health = self.worker.health
        if step is None or not step.launched:
            return self._stopped or Failed(Fault.DEVICE, RuntimeError(health.lost))
        try:
            self.worker.runtime.synchronize(step.out_event)
            self.executor.pool.copied(step.copy)
            step.conclude()
            if step.error is None:
                return step.result()
        except BaseException as exc:
            health.lose(exc)
            return Failed(Fault.DEVICE, exc)
        # The frames of the exception refer to the step and its tensors until they are collected. After running out of
        # memory, the next try would lack that memory. The traceback keeps its lines.
        clear_frames(step.error.__traceback__)
        fault = fault_of(step.error)
        if fault is Fault.DEVICE:
            health.lose(step.error)
        return Failed(fault, step.error)

    def _send(self, *, continues: bool) -> None:
        """Report the steps made since the last report."""
        failure = self._failed
        if failure is not None and (not self._rans or self._whole or failure.fault is Fault.DEVICE):
            completion = failed(self.job.unit_id, failure.fault, failure.error)
        else:
            ran = self._ran(continues=continues)
            completion = Completion(ran.outcome(self.job.unit_id), ran)
            self._rans = []
            self.stop.made = 0
        if self._whole and self.executor.activations is not None:
            self.executor.activations.release(self.job.slots)
        completion.worker = self.worker.index
        self._report(completion)

    def _ran(self, *, continues: bool) -> Ran:
        first, last, times = self._rans[0], self._rans[-1], tuple(ran.infer_ns for ran in self._rans)
        staged = self.executor.activations is not None
        silent = self._whole and self._cell is not None
        return Ran(
            [] if silent else last.outputs,
            first.input_ns,
            sum(times),
            last.output_ns,
            overlapped=True,
            stages_ns=(sum(times),) if self._cell is not None else times if staged else (),
            step_ns=max(1, round(median(times))) if self._cell is not None else None,
            steps=len(times),
            ended=last.ended,
            continues=continues,
            lengths=None if silent else last.lengths,
        )
