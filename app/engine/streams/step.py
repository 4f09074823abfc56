"""One launch on the streams of a worker: a batch, one stage of it, or one step of a cell; until its results are there.

A unit of several stages or steps is several of these, one behind another on one stream (`unit.py`). One that is
launched behind another takes over its rows where that will leave them. It fails if that fails, and does nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from app.contract import Array
from app.engine.activations import Passed, Place
from app.engine.device import Ran
from app.engine.pool import Slots
from app.engine.streams.cells import CellStreamExecutor
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.graphs import Piece
from app.engine.streams.results import HostBlock
from app.scheduler.types import Fault


class Failed(NamedTuple):
    """What came of a step in place of a `Ran`."""

    fault: Fault
    error: BaseException


@dataclass(frozen=True, slots=True)
class Plan:
    """A step to be launched: rows, which run as a batch of `size`, at a stage.

    Of a cell also how many steps each row has made before, and the positions of the rows that end with this one, where
    that is known before it has run.
    """

    slots: Slots
    size: int
    stage: int = 0
    done: Sequence[int] = ()
    ends: Sequence[int] = ()


class Step:
    """Between its launch and its end. `error` is set by whichever stream meets it."""

    __slots__ = (
        "before", "begun", "block", "error", "executor", "graph", "longest", "lost", "memory", "number", "outputs",
        "passed", "places", "plan", "size", "slots", "stage",
    )  # fmt: skip

    def __init__(
        self, executor: StreamExecutor, worker: int, plan: Plan, before: Step | None, begun: int, *, graphs: bool
    ) -> None:
        """`before`: the step of the same unit behind which it is launched. Without `graphs`, its rows are padded to
        the longest of them; a graph may pad them further.
        """
        self.executor, self.plan, self.before, self.begun = executor, plan, before, begun
        self.slots, self.stage = plan.slots, plan.stage
        self.memory = executor.memories[worker]
        self.longest = executor.longest(self.slots)
        longest = max(self.longest.values(), default=0)
        self.graph = executor.graph(worker, plan.size, longest) if graphs else None
        self.size = plan.size if self.graph is None else self.graph.shape.size
        self.block: HostBlock = self.memory.blocks.take()
        self.number = 0  # of the last copy of its rows
        #: Held until the out-event has fired: memory of the worker's stream that the out-stream still reads must not
        #: go back to an allocator that would hand it to the worker's next batch.
        self.outputs: Sequence[torch.Tensor] = ()
        self.places: Sequence[Place] = ()  # where its rows come from; held until then for the same reason
        self.passed: Passed | None = None  # what it leaves for the next stage
        self.error: BaseException | None = None
        self.lost: BaseException | None = None  # the device failed while this was launched: there is no event

    # at its launch

    def enqueue(self, runtime: CudaRuntime, stream: Any, out: Any) -> None:
        """All of its work, on its worker's two streams. Raises what the runtime raises when the device fails.

        It waits for the in-event of its last slot, gathers its rows and runs the model; on the out-stream its outputs
        are copied into a block of pinned memory, and the out-event is recorded.
        """
        block = self.block
        self.number, in_event = self.executor.pool.in_event(self.slots)
        runtime.wait(stream, in_event)
        self._prepare()
        runtime.record(block.began, stream)
        runtime.enqueue(stream, self._compute)
        runtime.record(block.computed, stream)
        if not self._leaving():
            runtime.record(block.out_event, stream)
            return
        if self.graph is None or not self.graph.outputs:
            runtime.wait(out, block.computed)
        else:
            self._enqueue_aside(runtime, stream)
            runtime.wait(out, block.aside)
        runtime.enqueue(out, self._copy_out)
        runtime.record(block.out_event, out)

    def _leaving(self) -> int:
        """How many rows of something are copied to the host."""
        return len(self.slots) if self.passed is None else 0

    def _prepare(self) -> None:
        """Say what the step is made of, and of a model in stages where its rows come from and will be."""
        executor = self.executor
        executor.write_index(self.slots, self.size, self.block.table)
        try:
            if self.stage:
                self.places = self._before()
        except RuntimeError as exc:  # a bug of the scheduler
            self.error = exc
        if self.stage < executor.last:
            self.passed = Passed(self.stage, (), self.longest, ())

    def _before(self) -> list[Place]:
        if self.before is None:
            return self.executor.kept.places_of(self.slots, self.stage - 1)
        assert self.before.passed is not None
        return [(self.before.passed, position) for position in range(len(self.slots))]

    def _enqueue_aside(self, runtime: CudaRuntime, stream: Any) -> None:
        graphs = self.memory.graphs
        assert graphs is not None  # one of them is this step's
        if graphs.left is not None:
            runtime.wait(stream, graphs.left)
        runtime.enqueue(stream, self._set_aside)
        runtime.record(self.block.aside, stream)
        graphs.left = self.block.out_event

    # on the streams

    def _compute(self) -> None:
        if self.error is None and self.before is not None:
            self.error = self.before.error
        if self.error is not None:
            return
        try:
            if self.graph is None:
                self._run()
            else:
                self._replay()
        except BaseException as exc:  # a model's: reported when the out-event has fired, for its slots are being read
            self.error = exc

    def _run(self) -> None:
        returned = self.executor.forward(
            self.memory, self.block, self.slots, self.size, self.longest, self.stage, self.places
        )
        if self.passed is None:
            self.outputs = returned
        else:
            self.passed.tensors = tuple(returned)

    def _replay(self) -> None:
        """What a graph leaves for the next stage is copied at once: its next replay writes there again."""
        assert self.graph is not None
        piece = self.graph.pieces[self.stage]
        self._enter(piece)
        piece.replay()
        if self.passed is not None:
            self.passed.tensors = tuple(output[: len(self.slots)].clone() for output in piece.outputs)

    def _enter(self, piece: Piece) -> None:
        """Put what the step reads where its graph finds it."""
        assert self.graph is not None
        self.memory.index.copy_(self.block.index, non_blocking=True)
        if self.stage:
            places = [*self.places, *[self.places[-1]] * (self.size - len(self.slots))]
            longest = self.executor.padded_to(self.graph.shape.length)
            self.executor.kept.take(places, self.stage, longest, piece.inputs)

    def _set_aside(self) -> None:
        assert self.graph is not None  # it was replayed
        if self.error is None:
            try:
                self.graph.set_aside()
                self.outputs = self.graph.aside
            except BaseException as exc:
                self.error = exc

    def _copy_out(self) -> None:
        if self.error is None:
            try:
                self.block.copy_out(self.outputs, self._leaving())
            except BaseException as exc:
                self.error = exc

    # on its completer's thread, when its out-event has fired

    def conclude(self, runtime: CudaRuntime, aside: Callable[[], Any]) -> None:
        """Do what is left to do. `aside` gives a stream that no other step's work is enqueued on."""

    def result(self, runtime: CudaRuntime, last: int, clock: Callable[[], int]) -> tuple[Ran, int]:
        """What the step gave, and when it had computed, by the host's clock.

        Computing and the copies of the outputs are timed by events on the device. What is left counts as input: since
        the step was launched, or since the worker's step before it had computed, at `last`, if that came later. It is
        the wait for the rows' copies, the launch, and the time that this thread took to wake up.
        """
        block, now = self.block, clock()
        infer = runtime.elapsed_ns(block.began, block.computed)
        computed = now - runtime.elapsed_ns(block.computed, block.out_event)
        waited = max(0, computed - infer - max(self.begun, last))
        info = self.executor.model.info
        outputs: list[Array] = []
        lengths: Array | None = None
        if self._answers():
            outputs = self.memory.blocks.collect(block, info.returned)
            lengths = outputs.pop() if info.own_axes else None
        else:
            self.memory.blocks.give_back(block)
        return Ran(outputs, waited, infer, clock() - computed, overlapped=True, lengths=lengths), computed

    def _answers(self) -> bool:
        """Whether rows end with it."""
        return self.passed is None

    def commit(self) -> None:
        """It has ended well, and so have those before it: its rows are where it has left them."""
        if self.passed is not None:
            self.executor.kept.commit(self.slots, self.passed, range(len(self.slots)))

    def end(self) -> None:
        """Let go what it has held."""
        self.outputs, self.places, self.graph, self.before = (), (), None, None


class CellStep(Step):
    """Rows that have not begun do so first; those that end are finished, and they alone are copied to the host.

    Which rows end is known at its launch, unless the cell says so: then it is known when the flags have come, and the
    worker's completer has the rest done, on a stream of its own: steps of others may have been launched behind it.
    """

    __slots__ = ("cell", "ended", "new")

    def __init__(
        self, executor: StreamExecutor, worker: int, plan: Plan, before: Step | None, begun: int, *, graphs: bool
    ) -> None:
        super().__init__(executor, worker, plan, before, begun, graphs=graphs)
        assert isinstance(executor, CellStreamExecutor)
        self.cell = executor
        self.size = len(self.slots) if self.graph is None else self.size
        self.ended: Sequence[int] = ()  # positions of rows that end with it
        self.new = [slot for slot, made in zip(self.slots, plan.done, strict=True) if not made]

    def _leaving(self) -> int:
        return len(self.slots) if self.cell.flags else len(self.ended)

    def _answers(self) -> bool:
        return bool(self.ended)

    def _prepare(self) -> None:
        cell, slots, table, done = self.cell, self.slots, self.block.table, self.plan.done
        if any(made >= limit for made, limit in zip(done, cell.limits(slots), strict=True)):  # a bug of the scheduler
            self.error = RuntimeError("a row has made all its steps")
            done = [0] * len(slots)  # an index that is out of range would end the device
        if self.new:
            cell.write_begin(self.new, table)
        cell.write_step(slots, done, self.size, table)
        self._end(self.plan.ends)

    def _end(self, places: Sequence[int]) -> None:
        """These rows end with this step."""
        self.ended = places
        if places:
            self.cell.write_ends([self.slots[place] for place in places], self._made(), self.block.table)

    def _made(self) -> list[int]:
        return [self.plan.done[place] + 1 for place in self.ended]

    def _run(self) -> None:
        self._begin()
        # A cell may write its flags into the same memory each time.
        self.outputs = [flags.clone() for flags in self.cell.step(self.memory.index, self.size)]
        self._finish()

    def _replay(self) -> None:
        assert self.graph is not None
        self._begin()
        self.graph.pieces[0].replay()
        self._finish()

    def _begin(self) -> None:
        self.memory.index.copy_(self.block.index, non_blocking=True)
        if self.new:
            keywords = self.cell.keywords(self.new, len(self.new))
            self.cell.begin(self.memory.index, len(self.new), self.cell.longest(self.new), **keywords)

    def _finish(self) -> None:
        """Rows that are known to end. They read what the step has written."""
        if self.ended:
            self.outputs = self._finished(self.memory.index)

    def _finished(self, index: torch.Tensor) -> list[torch.Tensor]:
        return self.cell.finish(index, [self.slots[place] for place in self.ended], self._made())

    def conclude(self, runtime: CudaRuntime, aside: Callable[[], Any]) -> None:
        """The flags have come. Rows that end are finished now: few steps have such, and the wait is the completer's."""
        if not self.cell.flags or self.error is not None:
            return
        flags, limits = self.block.places[0].target.tolist(), self.cell.limits(self.slots)
        self._end([place for place, made in enumerate(self.plan.done) if flags[place] or made + 1 == limits[place]])
        if self.ended:
            stream = aside()
            runtime.enqueue(stream, self._finish_flagged)
            runtime.record(self.block.out_event, stream)
            runtime.synchronize(self.block.out_event)

    def _finish_flagged(self) -> None:
        try:
            index = self.block.index.to(self.memory.index.device, non_blocking=True, copy=True)
            self.outputs = self._finished(index)
            self.block.copy_out(self.outputs, len(self.ended))
        except BaseException as exc:
            self.error = exc

    def result(self, runtime: CudaRuntime, last: int, clock: Callable[[], int]) -> tuple[Ran, int]:
        ran, computed = super().result(runtime, last, clock)
        ran.ended = tuple(self.ended)
        return ran, computed

    def commit(self) -> None:
        self.cell.rows.made.update((slot, made + 1) for slot, made in zip(self.slots, self.plan.done, strict=True))
