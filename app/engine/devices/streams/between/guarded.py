"""A unit of several captured stages, which the device runs one behind another and can be told to end early.

All stages are launched at once, and each asks the worker's guard before it does anything (`memory/words.py`). What a
stage leaves is copied behind it, whether it ran or not; how many ran is known with the out-event, and says which copy
is the rows'. So they move on then, and not at the launch: nobody may launch a unit behind this one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from app.contract import Array
from app.engine.devices.base import MADE, Job, Ran, Report
from app.engine.devices.streams.between.passing import Produced
from app.engine.devices.streams.runtime import Runtime
from app.engine.devices.streams.unit import UnitInFlight


class GuardedUnit(UnitInFlight):
    """A batch without a graph runs one stage, and reports one, however many the job has."""

    __slots__ = ("_job", "_kept", "_launched", "_made", "_times")

    def __init__(self, job: Job, worker: int, report: Report, begun: int, length: int = 0) -> None:
        super().__init__(job, worker, report, begun, length)
        self._job = job
        self._kept: list[tuple[torch.Tensor, ...]] = []  # by stage: what it left, if it ran
        self._launched = 0
        self._made = 0  # stages that have run; 0 without a graph
        self._times: tuple[int, ...] = ()

    @property
    def leaves(self) -> int:
        if self.graph is None:
            return super().leaves
        return len(self.slots) if self.stage + self._launched > self.executor.last else 0

    def _move_on(self) -> None:
        if self.graph is None:
            super()._move_on()

    def _launch(self, runtime: Runtime, stream: Any) -> None:
        if self.graph is None:
            super()._launch(runtime, stream)
            return
        for place in range(min(self._job.steps, self.executor.last + 1 - self.stage)):
            if place and self._job.recalled:  # known before the device is asked
                break
            runtime.enqueue(stream, partial(self._pass, place))
            runtime.record(self.block.behind(place), stream)
            self._launched += 1
        runtime.enqueue(stream, self._tell)

    def _pass(self, place: int) -> None:
        """One stage, on the worker's stream."""
        if self.error is not None:
            return
        try:
            self._replay_stage(place)
        except BaseException as exc:
            setattr(exc, MADE, place)
            self._fail(exc)

    def _replay_stage(self, place: int) -> None:
        words, graph = self.memory.words, self.graph
        assert words is not None
        assert graph is not None
        piece = graph.pieces[self.stage + place]
        if place == 0:
            words.begin()
            self._enter(piece)
        else:
            if place == 1:
                words.go_on(self.unit_id)
            for target, value in zip(piece.inputs, self._kept[-1], strict=True):
                target.copy_(value, non_blocking=True)
        piece.replay()
        if self.stage + place < self.executor.last:
            self._kept.append(tuple(output.clone() for output in piece.outputs))

    def _tell(self) -> None:
        words = self.memory.words
        assert words is not None
        self.block.made.copy_(words.made, non_blocking=True)

    def conclude(self, runtime: Runtime, out: Any) -> None:
        """How many stages ran is known now: their rows stand behind the last of them."""
        if self.graph is None or self.error is not None:
            return
        block = self.block
        self._made = int(block.made)
        if not 0 < self._made <= self._launched:
            raise RuntimeError(f"the guard counted {self._made} stages of {self._launched}")
        events = [block.began, *map(block.behind, range(self._made))]
        self._times = tuple(map(runtime.elapsed_ns, events, events[1:]))
        stage = self.stage + self._made - 1
        if stage < self.executor.last:
            rows = len(self.slots)
            tensors = tuple(value[:rows] for value in self._kept[self._made - 1])
            self.produced = Produced(stage, tensors, self.longest, ())
            self.executor.passing.move_on(self.slots, self.produced, range(rows))

    def end(self) -> None:
        super().end()
        self._kept = []

    def _ran(self, outputs: list[Array], waited: int, infer: int, out: int) -> Ran:
        if not self._made:
            return super()._ran(outputs, waited, infer, out)
        return Ran(outputs, waited, infer, out, overlapped=True, stages_ns=self._times, steps=self._made)
