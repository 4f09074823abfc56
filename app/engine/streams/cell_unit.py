"""A step of a recurrent model on a device of streams, from its launch to its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from app.contract import Array
from app.engine.device import Job, Ran, Report, Void
from app.engine.streams.cells import CellStreamExecutor
from app.engine.streams.passing import Produced, check, error_of, events
from app.engine.streams.runtime import Runtime
from app.engine.streams.unit import UnitInFlight


class CellUnit(UnitInFlight):
    """Rows that have not begun do so first; those that end are finished, and they alone are copied to the host.

    Which rows end is known at its launch, unless the cell says so: then it is known when the flags have come, and the
    worker's completer has the rest done, on a stream of its own: units of others may have been launched behind it.
    """

    __slots__ = ("cell", "done", "ended", "expected", "new")

    def __init__(self, job: Job, worker: int, report: Report, begun: int, length: int = 0) -> None:
        super().__init__(job, worker, report, begun, length)
        assert isinstance(job.executor, CellStreamExecutor)
        self.cell = job.executor
        self.size = len(self.slots) if self.graph is None else self.size
        self.done: list[int] = []  # steps that its rows had made before
        self.expected = list(job.made)  # of a unit that is pushed behind another with rows of its own
        self.ended: list[int] = []  # positions of rows that end with it
        self.new: list[int] = []

    @property
    def answers(self) -> bool:
        return bool(self.ended)

    @property
    def leaves(self) -> int:
        return len(self.slots) if self.cell.flags else len(self.ended)

    def _prepare(self, runtime: Runtime, stream: Any) -> None:
        cell, slots, table = self.cell, self.slots, self.block.table
        self.places = cell.passing.standing(slots)
        self.done = [0 if place is None else place[1] for place in self.places]
        self.new = [slot for slot, place in zip(slots, self.places, strict=True) if place is None]
        limits = cell.limits(slots)
        if self.expected and self.expected != self.done:  # that one has failed, and its rows are where they were
            self._fail(Void("its rows have not made the step before"))
        elif any(made >= limit for made, limit in zip(self.done, limits, strict=True)):  # a bug of the scheduler
            self._fail(RuntimeError("a row has made all its steps"))
        if self.error is not None:
            self.done = [0] * len(slots)
        if self.new:
            cell.tell_begin(self.new, table)
        cell.tell_step(slots, self.done, self.size, table)
        if not cell.flags:
            self._end([place for place, made in enumerate(self.done) if made + 1 == limits[place]])
        for event in events(self.places):
            runtime.wait(stream, event)
        self.produced = Produced(0, (), {}, (), self.block.computed, self.error)
        cell.passing.move_on(slots, self.produced, [made + 1 for made in self.done])

    def _end(self, places: list[int]) -> None:
        """These rows end with this step."""
        self.ended = places
        if places:
            made = [self.done[place] + 1 for place in places]
            self.cell.tell_ends([self.slots[place] for place in places], made, self.block.table)

    def _compute(self) -> None:
        if self.error is None:
            super()._compute()

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

    def _finish(self) -> None:
        """Rows that are known to end. They read what the step has written."""
        if self.ended:
            self.outputs = self._finished(self.memory.index)

    def _finished(self, index: torch.Tensor) -> list[torch.Tensor]:
        made = [self.done[place] + 1 for place in self.ended]
        return self.cell.finish(index, [self.slots[place] for place in self.ended], made)

    def _begin(self) -> None:
        places = [place for place in self.places if place is not None]
        if (failed := error_of(places)) is not None:
            raise Void("the step before has failed") from failed
        check(places, 0)
        self.memory.index.copy_(self.block.index, non_blocking=True)
        if self.new:
            keywords = self.cell.keywords(self.new, len(self.new))
            self.cell.begin(self.memory.index, len(self.new), self.cell.longest(self.new), **keywords)

    def conclude(self, runtime: Runtime, aside: Callable[[], Any]) -> None:
        """The flags have come. Rows that end are finished now: few units have such, and the wait is the completer's."""
        if not self.cell.flags or self.error is not None:
            return
        flags, limits = self.block.places[0].target.tolist(), self.cell.limits(self.slots)
        self._end([place for place, made in enumerate(self.done) if flags[place] or made + 1 == limits[place]])
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
            self._fail(exc)

    def _ran(self, outputs: list[Array], waited: int, infer: int, out: int) -> Ran:
        return Ran(outputs, waited, infer, out, True, stages_ns=(infer,), ended=tuple(self.ended))
