"""One launch on the streams of a worker, from launch to results: a whole batch, one stage of it, or a step of a cell.

A unit of several stages or steps makes several, one behind another on one stream (`unit.py`). One that is behind
another reads its rows from where that one will leave them; if that one fails, it does nothing and fails too. Results
are copied into pinned memory lent to the launch, and from there into arrays that belong to the callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from app.contract import Array
from app.engine.executor import NO_BOUND, WHOLE, Job, Ran, Stop
from app.engine.pool import Place, Slots
from app.engine.streams.cells import CellStreamExecutor
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.threads import StreamWorker
from app.engine.streams.worker_memory import StageGraph
from app.models.base import copied


def launches(job: Job, executor: StreamExecutor, stop: Stop, worker: StreamWorker) -> Iterator[Launch]:
    """The steps of a unit in order, not launched yet; at least one. A stop counts when the next one is asked for."""
    if isinstance(executor, CellStreamExecutor) and executor.steps is not None:
        return _cell_launches(job, executor, stop, worker)
    return _stage_launches(job, executor, stop, worker)


def _stage_launches(job: Job, executor: StreamExecutor, stop: Stop, worker: StreamWorker) -> Iterator[Launch]:
    """A whole batch, or stages."""
    stages = range(executor.last + 1)
    if job.stage != WHOLE and executor.last:
        stages = stages[job.stage : job.stage + job.steps]
    step: Launch | None = None
    for stage in stages:
        step = Launch(executor, worker, step, job.slots, job.size, stage)
        yield step
        if stop.now:
            return


def _cell_launches(job: Job, executor: CellStreamExecutor, stop: Stop, worker: StreamWorker) -> Iterator[CellLaunch]:
    """Rows leave with the step that they end with: the others continue, or the unit ends there.

    If the cell itself ends rows, the next step must be asked for after this one has ended.
    """
    slots, whole = list(job.slots), job.stage == WHOLE
    done = [executor.rows.get(slot) or 0 for slot in slots]
    left = NO_BOUND if whole else job.steps
    step: CellLaunch | None = None
    while slots and left:
        step = CellLaunch(executor, worker, step, slots, done)
        yield step
        if stop.now:
            return
        left, done = left - 1, [made + 1 for made in done]
        if step.ended:
            gone = set(step.ended)
            staying = [place for place in range(len(slots)) if place not in gone]
            slots, done = [slots[place] for place in staying], [done[place] for place in staying]
            left = NO_BOUND if whole or not stop.at_next_row else 0


class Launch:
    """A step of a unit: the rows in `slots` run as a batch of `size` at a stage.

    `error`: why it failed, set at its launch, or on the stream where it occurs. `launched`: False: it could not be
    launched, and there is no out-event. `answers`: it makes outputs. `ended`: at a cell, the positions of the rows that
    end with it.
    """

    ended: Sequence[int] = ()
    error: BaseException | None = None
    launched = False
    graph: StageGraph | None = None  # that it replays, if any
    #: Kept until the out-event has fired: the out-stream still reads this memory, which the allocator of the worker's
    #: stream would otherwise give to the next batch.
    outputs: Sequence[torch.Tensor] = ()
    places: Sequence[Place] = ()  # where its rows come from; kept for the same reason
    results: Sequence[torch.Tensor] = ()  # the outputs in pinned memory
    passed: tuple[torch.Tensor, ...] = ()  # its result for the next stage
    copy = 0  # the number of the last copy of rows that it waits for

    def __init__(
        self, executor: StreamExecutor, worker: StreamWorker, before: Launch | None, slots: Slots, size: int, stage: int
    ) -> None:
        """`before`: the step of the same unit behind which it is launched."""
        self.executor, self.worker, self.before = executor, worker, before
        self.slots, self.size, self.stage = slots, size, stage
        self.memory = executor.memories[worker.index]
        self.answers = stage == executor.last

    # at its launch

    def reserve(self) -> None:
        """Choose its graph and take its buffers. Raises if pinned memory runs out."""
        executor, worker, memory = self.executor, self.worker, self.memory
        self.begun = worker.runtime.clock()
        self.longest = executor.lengths_of(self.slots)[1]
        shape = executor.shape(worker.index, self.size, self.longest)
        if shape is not None:
            self.graph = memory.graphs[shape][self.stage]
            self.size, self.longest = shape.size, dict(executor.padded_to(shape, self.longest))
        self.buffers = memory.take()
        #: Its rows, see `StreamExecutor.write_index`. Filled with 0, a valid slot, so that gathering more rows than the
        #: unit has stays within the memory.
        self.index = self.buffers.index
        self.table: Array = self.index.numpy()
        self.table[:] = 0
        #: Events: the rows are on the device and the model begins; the outputs are in device memory; they are on the
        #: host.
        self.began, self.computed, self.out_event = self.buffers.events

    def launch(self) -> None:
        """Enqueue all of its work on the worker's two streams. Raises what the runtime raises when the device fails.

        The stream waits for the in-event of its last slot, or copies the rows, gathers them and runs the model. The
        out-stream copies outputs into pinned memory and records the out-event.
        """
        runtime, stream, out = self.worker.runtime, self.worker.stream, self.worker.out
        self.copy = self.executor.pool.follow(self.slots, stream)
        self._prepare()
        runtime.enqueue(stream, partial(self._try, self._compute))
        runtime.record(self.computed, stream)
        if self.answers or self.executor.flags:
            runtime.wait(out, self.computed)
            runtime.enqueue(out, partial(self._try, self._copy_out))
            stream = out
        runtime.record(self.out_event, stream)
        self.launched = True

    def _prepare(self) -> None:
        """Write the index of its rows."""
        self.executor.write_index(self.slots, self.size, self.table)

    # on the streams

    def _try(self, work: Callable[[], None]) -> None:
        """Run `work` unless the step has failed. An error is reported only after the out-event has fired, because the
        step's slots are being read until then."""
        if self.error is None:
            try:
                work()
            except BaseException as exc:
                self.error = exc

    def _compute(self) -> None:
        if self.before is not None and self.before.error is not None:
            raise self.before.error
        self.memory.index.copy_(self.index, non_blocking=True)
        passed = self._gathered()
        # Recorded this late, because an idle stream reaches the event at once: the time would include that of the calls
        # that come between it and the model.
        self.worker.runtime.record(self.began, self.worker.stream)
        returned = self._run(passed)
        # Copied at once, because the next replay of the graph writes there again, and the model may do so too.
        left = [value[: len(self.slots)].clone() for value in returned]
        if self.stage == self.executor.last:
            self.outputs = left
        else:
            self.passed = tuple(left)

    def _gathered(self) -> Sequence[torch.Tensor]:
        """What the stage before has left for these rows, in the memory that its graph reads if it has one."""
        if not self.stage:
            return ()
        if self.before is None:
            self.places = self.executor.passed.places_of(self.slots, self.stage - 1)
        else:
            self.places = [(self.before.passed, row) for row in range(len(self.slots))]
        places = [*self.places, *[self.places[-1]] * (self.size - len(self.places))]
        inputs = None if self.graph is None else self.graph.inputs
        return self.executor.passed.gather(places, self.stage, self.longest, inputs)

    def _run(self, passed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self.graph is not None:
            self.graph.replay()
            return self.graph.outputs
        return self.executor.step(self.stage, passed, self.memory.index, self.slots, self.size, self.longest)

    def _copy_out(self) -> None:
        self.results = self.buffers.results(self.outputs)
        for result, value in zip(self.results, self.outputs, strict=True):
            result.copy_(value, non_blocking=True)

    # on its completer's thread, after its out-event has fired

    def result(self) -> Ran | None:
        """The result of the step, with times; None if it has failed.

        Computing and copying outputs are timed by events on the device. The rest counts as input time: from the launch,
        or from when the worker's previous step had computed if that was later. It consists of waiting for the rows'
        copies, the launch, and the wake-up of this thread.
        """
        if self.error is not None:
            return None
        worker, now = self.worker, self.worker.runtime.clock()
        infer = worker.runtime.elapsed_ns(self.began, self.computed)
        computed = now - worker.runtime.elapsed_ns(self.computed, self.out_event)
        waited = max(0, computed - infer - max(self.begun, worker.computed))
        worker.computed = computed
        outputs, lengths = self._outputs() if self.answers else ([], None)
        out = worker.runtime.clock() - computed
        return Ran(outputs, waited, infer, out, overlapped=True, ended=tuple(self.ended), lengths=lengths)

    def _outputs(self) -> tuple[list[Array], Array | None]:
        results = zip(self.results, self.executor.model.info.returned, strict=True)
        return self.executor.answers([copied(result, spec, len(result)) for result, spec in results])

    def commit(self) -> None:
        """It has ended well, and so have the steps before it: keep its result for its rows."""
        if not self.answers:
            self.executor.passed.commit(self.slots, self.stage, self.passed)

    def end(self) -> None:
        """Release its memory, after its out-event has fired and its results have been copied."""
        self.outputs, self.places, self.results, self.before = (), (), [], None
        self.memory.spare.append(self.buffers)


class CellLaunch(Launch):
    """A step of a cell. New rows begin first; rows that end are finished, and only their outputs are copied to the
    host.

    Which rows end is known when it is made, unless the cell itself decides. Then it is known when the flags are on the
    host, and the completer finishes these rows on a stream of its own, since other steps may have been launched behind.
    """

    executor: CellStreamExecutor

    def __init__(
        self, executor: CellStreamExecutor, worker: StreamWorker, before: Launch | None, slots: Slots,
        done: Sequence[int],
    ) -> None:  # fmt: skip
        """`done`: the steps that each row has made before. Only a graph pads the rows."""
        super().__init__(executor, worker, before, slots, len(slots), 0)
        self.done, self.limits = done, executor.limits(slots)
        self.new = [slot for slot, made in zip(slots, done, strict=True) if not made]
        if any(made >= limit for made, limit in zip(done, self.limits, strict=True)):  # a bug of the scheduler
            self.error = RuntimeError("a row has made all its steps")
        if not executor.flags:
            self.ended = self._over([False] * len(slots))
        self.answers = bool(self.ended)

    def _over(self, flags: Sequence[bool]) -> list[int]:
        """The positions of rows that have these flags, or have made all their steps with this one."""
        rows = enumerate(zip(flags, self.done, self.limits, strict=True))
        return [place for place, (flag, made, limit) in rows if flag or made + 1 >= limit]

    def _prepare(self) -> None:
        if self.new:
            self.executor.write_index(self.new, len(self.new), self.table)
        self.executor.write_step(self.slots, self.done, self.size, self.table)
        if self.ended:
            self.executor.write_ends(*self._leavers(), self.table)

    def _leavers(self) -> tuple[list[int], list[int]]:
        """The slots of the rows that end with it, and the steps that each has made."""
        return [self.slots[place] for place in self.ended], [self.done[place] + 1 for place in self.ended]

    def _run(self, passed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        executor, index = self.executor, self.memory.index
        if self.new:
            executor.begin(index, self.new)
        flags = super()._run(passed)
        return executor.finish(index, *self._leavers()) if self.ended else flags

    def result(self) -> Ran | None:
        """Flags are on the host: finish the rows that end. Few steps have any, and only the completer waits."""
        if self.executor.flags and self.error is None:
            self.ended = self._over(self.results[0].tolist())
            self.answers = bool(self.ended)
            if self.answers:
                self.executor.write_ends(*self._leavers(), self.table)
                runtime, stream = self.worker.runtime, self.worker.ends
                runtime.enqueue(stream, partial(self._try, self._finish_flagged))
                runtime.record(self.out_event, stream)
                runtime.synchronize(self.out_event)
        return super().result()

    def _finish_flagged(self) -> None:
        index = self.index.to(self.memory.index.device, non_blocking=True, copy=True)
        self.outputs = self.executor.finish(index, *self._leavers())
        self._copy_out()

    def commit(self) -> None:
        self.executor.rows.join(self.slots, [made + 1 for made in self.done])
