"""A unit on a device of streams, from its launch to its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from app.contract import Array
from app.engine.activations import Place
from app.engine.device import Job, Ran, Report
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.passing import Produced, events
from app.engine.streams.replay import Piece
from app.engine.streams.results import HostBlock
from app.engine.streams.runtime import Runtime

AS_LONG_AS_ITS_ROWS = -1


class UnitInFlight:
    """A unit between its launch and its report. `error` is set by whichever stream meets it."""

    __slots__ = (
        "begun", "block", "error", "executor", "graph", "longest", "lost", "memory", "number", "outputs",
        "places", "produced", "report", "size", "slots", "stage", "unit_id",
    )  # fmt: skip

    def __init__(self, job: Job, worker: int, report: Report, begun: int, length: int = 0) -> None:
        """`length`: what its rows are padded to, if they are shorter, where there is a graph for that.

        AS_LONG_AS_ITS_ROWS: to the longest of them, without a graph.
        """
        executor = job.executor
        assert isinstance(executor, StreamExecutor)
        self.unit_id = job.unit_id
        self.executor = executor
        self.slots = job.slots
        self.report = report
        self.begun = begun
        self.stage = job.stage if executor.last else 0
        self.memory = executor.memories[worker]
        self.longest = executor.longest(self.slots)
        self.graph = None
        if length != AS_LONG_AS_ITS_ROWS:
            self.graph = executor.graph(worker, job.size, max(length, *self.longest.values(), 0))
        self.size = job.size if self.graph is None else self.graph.shape.size
        self.block: HostBlock = self.memory.blocks.take()
        self.number = 0
        #: Held until the out-event has fired: memory of the worker's stream that the out-stream still reads must not
        #: go back to an allocator that would hand it to the worker's next batch.
        self.outputs: Sequence[torch.Tensor] = ()
        self.places: Sequence[Place | None] = ()  # where its rows stood when it was launched
        self.produced: Produced | None = None  # what it leaves for the next stage
        self.error: BaseException | None = None
        self.lost: BaseException | None = None  # the device failed while this was launched: there is no event

    def enqueue(self, runtime: Runtime, stream: Any, out: Any) -> None:
        """All of the unit's work, on its worker's two streams. Raises what the runtime raises when the device fails.

        The unit waits for the in-event of its last slot, gathers its rows and runs the model; on the out-stream its
        outputs are copied into a block of pinned memory, and the out-event is recorded.
        """
        block = self.block
        self.number, in_event = self.executor.pool.in_event(self.slots)
        runtime.wait(stream, in_event)
        self._prepare(runtime, stream)
        runtime.record(block.began, stream)
        self._launch(runtime, stream)
        runtime.record(block.computed, stream)
        if not self.leaves:
            runtime.record(block.out_event, stream)
            return
        if self.graph is None or not self.graph.outputs:
            runtime.wait(out, block.computed)
        else:
            self._enqueue_aside(runtime, stream)
            runtime.wait(out, block.aside)
        runtime.enqueue(out, self._copy_out)
        runtime.record(block.out_event, out)

    @property
    def answers(self) -> bool:
        """Whether rows end with it."""
        return self.produced is None

    @property
    def leaves(self) -> int:
        """How many rows of something are copied to the host."""
        return len(self.slots) if self.answers else 0

    def _prepare(self, runtime: Runtime, stream: Any) -> None:
        """Say what the unit is made of. Of a model in stages: have the stream wait for what its rows come from, and
        say where they will stand.
        """
        self.executor.tell(self.slots, self.size, self.block.table)
        if not self.executor.last:
            return
        passing = self.executor.passing
        if self.stage:
            self.places = passing.standing(self.slots)
            for event in events(self.places):
                runtime.wait(stream, event)
        if self.stage < self.executor.last:
            self._move_on()

    def _move_on(self) -> None:
        self.produced = Produced(self.stage, (), self.longest, (), self.block.computed)
        self.executor.passing.move_on(self.slots, self.produced, range(len(self.slots)))

    def _launch(self, runtime: Runtime, stream: Any) -> None:
        runtime.enqueue(stream, self._compute)

    def _enqueue_aside(self, runtime: Runtime, stream: Any) -> None:
        graphs = self.memory.graphs
        assert graphs is not None  # one of them is this unit's
        if graphs.left is not None:
            runtime.wait(stream, graphs.left)
        runtime.enqueue(stream, self._set_aside)
        runtime.record(self.block.aside, stream)
        graphs.left = self.block.out_event

    def _compute(self) -> None:
        try:
            if self.graph is None:
                self._run()
            else:
                self._replay()
        except BaseException as exc:  # a model's: reported when the out-event has fired, for its slots are being read
            self._fail(exc)

    def _run(self) -> None:
        executor = self.executor
        returned = executor.forward(
            self.memory, self.block, self.slots, self.size, self.longest, self.stage, self.places
        )
        if self.produced is None:
            self.outputs = returned
        else:
            self.produced.tensors = tuple(returned)

    def _replay(self) -> None:
        """What a graph leaves for the next stage is copied at once: its next replay writes there again."""
        assert self.graph is not None
        piece = self.graph.pieces[self.stage]
        self._enter(piece)
        piece.replay()
        if self.produced is not None:
            self.produced.tensors = tuple(output[: len(self.slots)].clone() for output in piece.outputs)

    def _enter(self, piece: Piece) -> None:
        """Put what the unit's first stage reads where its graph finds it."""
        assert self.graph is not None
        self.memory.index.copy_(self.block.index, non_blocking=True)
        if self.stage:
            places = [*self.places, *[self.places[-1]] * (self.size - len(self.slots))]
            longest = self.executor.padded_to(self.graph.shape.length)
            self.executor.passing.take(places, self.stage, longest, piece.inputs)

    def _fail(self, exc: BaseException) -> None:
        self.error = exc
        if self.produced is not None:
            self.produced.error = exc

    def _set_aside(self) -> None:
        assert self.graph is not None  # it was replayed
        if self.error is None:
            try:
                self.graph.set_aside()
                self.outputs = self.graph.aside
            except BaseException as exc:
                self._fail(exc)

    def _copy_out(self) -> None:
        if self.error is None:
            try:
                self.block.copy_out(self.outputs, self.leaves)
            except BaseException as exc:
                self._fail(exc)

    def conclude(self, runtime: Runtime, aside: Callable[[], Any]) -> None:
        """On its completer's thread: its out-event has fired, for the first time if anything is left to do.

        `aside` gives a stream that no other unit's work is enqueued on.
        """

    def end(self) -> None:
        """Its out-event has fired: its rows stand where it has left them or, if it has failed, where they stood."""
        if self.produced is not None:
            self.executor.passing.ended(self.produced)
        self.outputs, self.places, self.graph = (), (), None

    def settle(self, runtime: Runtime, last: int, clock: Callable[[], int]) -> tuple[Ran, int]:
        """What the unit gave, after its out-event, and when it had computed, by the host's clock.

        Computing and the copies of the outputs are timed by events on the device. What is left counts as input: since
        the unit was launched, or since the worker's unit before it had computed, at `last`, if that came later. It is
        the wait for the rows' copies, the launch, and the time that this thread took to wake up.
        """
        block, now = self.block, clock()
        infer = runtime.elapsed_ns(block.began, block.computed)
        computed = now - runtime.elapsed_ns(block.computed, block.out_event)
        waited = max(0, computed - infer - max(self.begun, last))
        info = self.executor.model.info
        outputs: list[Array] = []
        lengths: Array | None = None
        if self.answers:
            outputs = self.memory.blocks.collect(block, info.returned)
            lengths = outputs.pop() if info.own_axes else None
        else:
            self.memory.blocks.give_back(block)
        ran = self._ran(outputs, waited, infer, clock() - computed)
        ran.lengths = lengths
        return ran, computed

    def _ran(self, outputs: list[Array], waited: int, infer: int, out: int) -> Ran:
        times = (infer,) if self.executor.model.stages else ()
        return Ran(outputs, waited, infer, out, overlapped=True, stages_ns=times)
