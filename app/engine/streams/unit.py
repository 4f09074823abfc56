"""The steps of one unit on a device of streams: stages that its batch passes through, or steps of a cell.

The launcher launches the next step while one runs, so that the stream finds it there when that one ends. How far ahead
is bounded (Late Batching, L4): behind the step that runs, no more are launched than take `push_ahead`, because a row
that is to join, or a recall, waits for all of them. Correctness rests on the order of the stream.

Steps are planned when the unit begins and whenever one of them has ended: this is where a recall is seen. A step that
is planned will be launched. Where a cell says which rows end with a step, nobody knows before what the next one is made
of, and it is planned when that one has ended.

When rows end, the unit ends, or reports them and continues without them. Where a step fails, those behind it do
nothing; the unit ends with the step before it, or fails if that was its first one.

To measure a model and to try it out, a batch runs WHOLE: through all stages, or all steps of its rows. That is one
unit, with the times of all its steps. It fails where one of them does, and nothing is kept of its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from app.contract import Array, ModelInfo
from app.engine.device import NO_BOUND, WHOLE, Job, Ran, Report, completed, failed, fault_of
from app.engine.pool import Slots
from app.engine.streams.cells import CellStreamExecutor
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.runtime import Health
from app.engine.streams.step import CellStep, Failed, Plan, Step
from app.engine.streams.worker import StreamWorker
from app.scheduler.types import Fault

MOST_AHEAD = 8  # steps behind the one that runs: each has pinned memory of its own


class UnitRun:
    """`launch` is the launcher's, `step_ended` the completer's of its worker.

    `launch_next` has the launcher call `launch` again; False if it takes no more messages. `graphs`: see `Step`.
    """

    def __init__(
        self,
        job: Job,
        worker: StreamWorker,
        report: Report,
        launch_next: Callable[[UnitRun], bool],
        push_ahead_ns: int,
        *,
        graphs: bool,
    ) -> None:
        executor = job.executor
        assert isinstance(executor, StreamExecutor)
        self.job = job
        self.worker = worker
        self.executor = executor
        self._report = report
        self._launch_next = launch_next
        self._push_ahead_ns = push_ahead_ns
        self._graphs = graphs
        self._cell = executor if isinstance(executor, CellStreamExecutor) and executor.steps is not None else None
        # of the launcher
        self._begun = False
        self._last: Step | None = None
        self._stopped: Failed | None = None  # why the last step could not be launched
        # of what is planned next
        self._slots = list(job.slots)
        self._padding = job.size - len(job.slots)
        self._whole = job.stage == WHOLE and executor.activations is not None
        self._stage = 0 if self._whole or not executor.last else job.stage
        self._left = job.steps
        if self._whole:
            self._left = NO_BOUND if self._cell is not None else len(executor.calls)
        self._done: list[int] = []  # of a cell: by row, steps that it will have made by then
        self._planned: deque[Plan] = deque()  # and not launched
        self._first = True
        # of what has run
        self._under_way = 0  # planned, and not ended
        self._step_ns = 0  # what the last one took
        self._rans: list[Ran] = []  # since the last report
        self._ended: list[tuple[Slots, list[Array]]] = []  # of a whole batch: rows that have, and their outputs
        self._failed: Failed | None = None

    # planning: on the launcher's thread before the first step is launched, then on the completer's

    def _plan(self) -> bool:
        """Plan steps as far ahead as may be; whether there is a new one."""
        planned = False
        while self._left and self._under_way < self._most_under_way() and (self._first or not self._ends()):
            self._planned.append(self._next())
            self._under_way += 1
            self._first, planned = False, True
        return planned

    def _ends(self) -> bool:
        return self._failed is not None or self.job.recalled or self.executor.memories[self.worker.index].unloaded

    def _most_under_way(self) -> int:
        if (self._cell is not None and self._cell.flags) or not self._push_ahead_ns:
            return 1
        return 1 + min(MOST_AHEAD, -(-self._push_ahead_ns // self._step_ns) if self._step_ns else 1)

    def _next(self) -> Plan:
        self._left -= 1
        slots, size = self._slots, len(self._slots) + self._padding
        if self._cell is None:
            self._stage += 1
            return Plan(slots, size, self._stage - 1)
        limits = self._cell.limits(slots)
        done = self._done
        self._done = [made + 1 for made in done]
        if self._cell.flags:
            return Plan(slots, size, 0, done)
        ends = [place for place, made in enumerate(self._done) if made >= limits[place]]
        if ends:
            self._leave(ends)
        return Plan(slots, size, 0, done, ends)

    def _leave(self, ends: Sequence[int]) -> None:
        """Rows at these positions end with the step that was planned last: the others continue, or all end there."""
        gone = set(ends)
        staying = [place for place in range(len(self._slots)) if place not in gone]
        self._slots = [self._slots[place] for place in staying]
        self._done = [self._done[place] for place in staying]
        self._left = NO_BOUND if staying and (self.job.continue_without or self._whole) else 0

    # launching

    def launch(self, runtime: CudaRuntime, health: Health, clock: Callable[[], int]) -> None:
        """Launch the steps that are planned."""
        if self.executor.memories[self.worker.index].unloaded:
            self._stopped = Failed(Fault.MODEL, RuntimeError("the model has been unloaded"))
        if not self._begun:
            self._begun = True
            if self._cell is not None:
                self._done = [self._cell.rows.made.get(slot, 0) for slot in self._slots]
            self._plan()
        while (plan := self._take()) is not None:
            self._launch(plan, runtime, health, clock)

    def _take(self) -> Plan | None:
        """The next planned step, for whichever thread comes first."""
        try:
            return self._planned.popleft()
        except IndexError:
            return None

    def _launch(self, plan: Plan, runtime: CudaRuntime, health: Health, clock: Callable[[], int]) -> None:
        worker = self.worker
        if health.lost is not None:
            self._stopped = Failed(Fault.DEVICE, RuntimeError(health.lost))
        if self._stopped is None:
            kind = Step if self._cell is None else CellStep
            try:
                step = kind(self.executor, worker.index, plan, self._last, clock(), graphs=self._graphs)
            except BaseException as exc:  # no pinned memory for another block, if not worse
                fault = fault_of(exc)
                if fault is not Fault.OOM:
                    fault = Fault.DEVICE
                    health.lose(exc)
                self._stopped = Failed(fault, exc)
        if self._stopped is not None:
            worker.launched(self._stopped, self.step_ended)
            return
        try:
            step.enqueue(runtime, worker.stream, worker.out)
        except BaseException as exc:
            step.lost = exc
            health.lose(exc)
        self._last = step
        worker.launched(step, self.step_ended)

    # its end

    def step_ended(self, step: Step | None, result: Ran | Failed) -> None:
        """The oldest of its steps has ended; None: it was not launched."""
        self._under_way -= 1
        ended: Sequence[int] = ()
        if isinstance(result, Failed):
            self._failed = self._failed or result
        elif self._failed is None and step is not None:
            step.commit()
            self._rans.append(result)
            self._step_ns = result.infer_ns
            self.job.done = len(self._rans)
            ended = result.ended
            if ended and self._cell is not None and self._cell.flags:
                self._leave(ended)
            if self._whole and result.outputs:
                rows = step.slots if self._cell is None else [step.slots[place] for place in ended]
                self._ended.append((rows, [*result.outputs, *([] if result.lengths is None else [result.lengths])]))
                result.outputs = []
        if step is not None and step.lost is None:  # otherwise nobody knows what the device still reads
            step.end()
        if self._plan() and not self._launch_next(self):
            self._failed = Failed(Fault.DEVICE, RuntimeError("the device is closed"))
            while self._take() is not None:
                self._under_way -= 1
        if not self._under_way:
            self._send(continues=False)
        elif ended and not self._whole:
            self._send(continues=True)

    def _send(self, *, continues: bool) -> None:
        """Report the steps since the last report."""
        failure = self._failed
        if self._whole and self._left and failure is None:  # it ended early
            failure = Failed(Fault.MODEL, RuntimeError("the model has been unloaded"))
        if failure is not None and (not self._rans or self._whole or failure.fault is Fault.DEVICE):
            completion = failed(self.job.unit_id, failure.fault, failure.error)
        else:
            completion = completed(self.job.unit_id, self._ran(continues=continues))
            self._rans = []
            self.job.done = 0
        if self._whole:
            self.executor.kept.let_go(self.job.slots)
        completion.worker = self.worker.index
        self._report(completion)

    def _ran(self, *, continues: bool) -> Ran:
        first, last, times = self._rans[0], self._rans[-1], tuple(ran.infer_ns for ran in self._rans)
        staged = self.executor.activations is not None
        outputs, lengths = last.outputs, last.lengths
        if self._whole:
            outputs = _in_order(self.executor.model.info, self.job.slots, self._ended)
            lengths = None if lengths is None else outputs.pop()
        return Ran(
            outputs,
            first.input_ns,
            sum(times),
            last.output_ns,
            overlapped=True,
            stages_ns=(sum(times),) if self._cell is not None else times if staged else (),
            step_ns=max(1, round(median(times))) if self._cell is not None else None,
            steps=len(times),
            ended=last.ended,
            continues=continues,
            lengths=lengths,
        )


def _in_order(info: ModelInfo, slots: Slots, ended: Sequence[tuple[Slots, list[Array]]]) -> list[Array]:
    """The outputs of all rows in their order, with zeros behind shorter ones; `ended`: rows that ended together.

    Those with an axis of their own are as long as rows may run, so that they do not depend on the batch.
    """
    if len(ended) == 1 and not info.own_axes:
        return ended[0][1]
    position = {slot: number for number, slot in enumerate(slots)}
    outputs = []
    for spec, arrays in zip(info.returned, zip(*(arrays for _, arrays in ended), strict=True), strict=True):
        longest = list(map(max, zip(*(array.shape[1:] for array in arrays), strict=True)))
        if info.has_own_length(spec):
            longest[0] = max(longest[0], spec.bounds[0])
        whole = np.zeros((len(slots), *longest), arrays[0].dtype)
        for (rows, _), array in zip(ended, arrays, strict=True):
            place: tuple[Any, ...] = ([position[slot] for slot in rows], *map(slice, array.shape[1:]))
            whole[place] = array
        outputs.append(whole)
    return outputs
