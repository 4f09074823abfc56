"""Plans, launches and reports the steps of one unit on a device of streams: its stages, or its steps of a cell.

The next step is launched while one runs, but no more of them than take `push_ahead`. Steps are planned when the unit
begins and each time one has ended; a stop is checked then. When rows end, the unit ends, or reports them and continues
without them. If a step fails, the unit ends with the step before it, or fails if there is none. A batch that
runs WHOLE fails if any step fails.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from traceback import clear_frames

from app.engine.device import Completion, Report, failed, fault_of
from app.engine.executor import WHOLE, Job, Ran, Stop
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.launch import Launch, launches
from app.engine.streams.threads import CLOSED, StreamWorker
from app.scheduler.types import Fault

MOST_AHEAD = 8  # steps launched behind the running one: each has pinned memory of its own


def most_steps(units: int) -> int:
    """Steps launched and not ended, of so many units of a worker: one runs, and each other has launched two at most."""
    return 1 + MOST_AHEAD + 2 * (units - 1)


class UnitRun:
    """One unit. `begin` and `launch` run on its worker's launcher thread, `_complete` on its completer, once for each
    step. Its steps are planned on the launcher's thread before the first is launched, then on the completer's.
    """

    def __init__(self, job: Job, stop: Stop, worker: StreamWorker, report: Report, push_ahead_ns: int) -> None:
        assert isinstance(job.executor, StreamExecutor)
        self.job, self.stop, self.worker, self.executor = job, stop, worker, job.executor
        self._report = report
        self._push_ahead_ns = push_ahead_ns
        self._whole = job.stage == WHOLE
        self._steps = launches(job, job.executor, stop, worker)
        self._planned: deque[Launch] = deque()  # steps not launched yet
        self._under_way = 0  # steps planned and not ended
        self._step_ns = 0  # the time of the last step that ran
        self._rans: list[Ran] = []  # of steps that have run since the last report
        self._failed: Completion | None = None

    def _plan(self) -> bool:
        """Plan steps as far ahead as allowed. Returns whether there is a new one."""
        before = self._under_way
        while self._failed is None and self._under_way < self._most_under_way():
            step = next(self._steps, None)
            if step is None:
                break
            self._planned.append(step)
            self._under_way += 1
        return self._under_way > before

    def _most_under_way(self) -> int:
        if self.executor.flags or not self._push_ahead_ns:
            return 1
        return 1 + min(MOST_AHEAD, -(-self._push_ahead_ns // self._step_ns) if self._step_ns else 1)

    # launching

    def begin(self) -> None:
        """Plan and launch the first steps. Even a recalled unit makes one."""
        self._plan()
        self.launch()

    def launch(self) -> None:
        """Launch the planned steps. Rows that have arrived are copied before."""
        try:
            self.executor.pool.copy_arrived(self.job.slots)
        except BaseException as exc:
            self.worker.health.lose(exc)
        while (step := self._take()) is not None:
            self._launch(step)
            self.worker.completer.send(self._complete, step)

    def _take(self) -> Launch | None:
        """The next planned step. When the device is closed, two threads may call this: see `_give_up`."""
        try:
            return self._planned.popleft()
        except IndexError:
            return None

    def _launch(self, step: Launch) -> None:
        """Launch a step. Behind one that could not be launched it does nothing: see `Launch._compute`."""
        health = self.worker.health
        if health.lost is None:
            try:
                step.reserve()
            except BaseException as exc:  # out of pinned memory, or worse
                step.error = exc
                if fault_of(exc) is not Fault.OOM:
                    health.lose(exc)
                return
            try:
                step.launch()
            except BaseException as exc:
                health.lose(exc)

    # its end

    def _complete(self, step: Launch) -> None:
        """Wait for the end of the oldest step, then plan further steps or report the unit."""
        ran = self._result(step)
        self._under_way -= 1
        if ran is not None:
            step.commit()
            self._rans.append(ran)
            self._step_ns = ran.infer_ns
            self.stop.made = len(self._rans)
        if self.worker.health.lost is not None:
            self.worker.health.held.append(step)
        elif step.launched:
            step.end()
        if self._plan() and not self.worker.launcher.send(self.launch):
            self._give_up()
        if not self._under_way:
            self._send(continues=False)
        elif ran is not None and ran.ended and not self._whole:
            self._send(continues=True)

    def _give_up(self) -> None:
        """The device has been closed, and its launcher ended: end the unit as if recalled, without its planned steps
        except those that the launcher still has in its queue. A unit that runs WHOLE fails.
        """
        while self._take() is not None:
            self._under_way -= 1
        self.stop.now = True
        if self._whole:
            self._fail(Fault.MODEL, RuntimeError(CLOSED))

    def _result(self, step: Launch) -> Ran | None:
        """Wait for a step. None if it failed, or one before it."""
        health = self.worker.health
        try:
            if step.launched:
                self.worker.runtime.synchronize(step.out_event)
                self.executor.pool.copied(step.copy)
                ran = step.result()
                if ran is not None:
                    return ran if self._failed is None else None
        except BaseException as exc:
            health.lose(exc)
            self._fail(Fault.DEVICE, exc)
            return None
        error = step.error or RuntimeError(health.lost)
        # The frames of the exception refer to the step and its tensors until they are collected. After running out of
        # memory, the next try would lack that memory. The traceback keeps its lines.
        clear_frames(error.__traceback__)
        fault = fault_of(error)
        if fault is Fault.DEVICE or (not step.launched and fault is not Fault.OOM):
            fault = Fault.DEVICE
            health.lose(error)
        self._fail(fault, error)
        return None

    def _fail(self, fault: Fault, error: BaseException) -> None:
        """A step has failed, and so will those behind it."""
        self._failed = self._failed or failed(self.job.unit_id, fault, error)

    def _send(self, *, continues: bool) -> None:
        """Report the steps made since the last report."""
        completion = self._failed
        if completion is None or (self._rans and not self._whole and completion.outcome.error is not Fault.DEVICE):
            ran = self._ran(continues=continues)
            completion = Completion(ran.outcome(self.job.unit_id), ran)
            self._rans = []
            self.stop.made = 0
        if self._whole and self.executor.activations is not None:
            self.executor.activations.release(self.job.slots)
        completion.worker = self.worker.index
        self._report(completion)

    def _ran(self, *, continues: bool) -> Ran:
        ran, times = self._rans[-1], tuple(one.infer_ns for one in self._rans)
        ran.input_ns, ran.infer_ns = self._rans[0].input_ns, sum(times)
        ran.steps, ran.continues = len(times), continues
        if self.executor.steps is not None:
            ran.step_ns = max(1, round(median(times)))
            if self._whole:  # the other rows have ended with earlier steps
                ran.outputs, ran.lengths = [], None
        elif self.executor.activations is not None:
            ran.stages_ns = times
        return ran
