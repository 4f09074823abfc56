"""Runs a model whose one segment repeats, a cell or a decoder: rows join a unit, make steps together, and leave as they
end (Late Batching).

All rows of a unit step together, whatever step each has reached. What is kept of them changes only with steps that ran
well, so a unit that fails can run again. It fails only with its first step: if a later one fails, it ends with those
before.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from app.contract import Array
from app.engine.cpu.executor import CpuExecutor
from app.engine.executor import NO_BOUND, WHOLE, Job, Ran, Stop
from app.engine.kept import Rows
from app.engine.pool import Slots


class Together(ABC):
    """Rows of one unit, brought together to make steps until some of them end."""

    made = 0  # steps that ran well

    @abstractmethod
    def steps(self) -> Iterator[int]:
        """Make steps until a row ends or the unit is stopped, and yield `made` after each. What the first step raises
        is raised; once something was yielded, an error ends the steps."""

    @abstractmethod
    def end(self) -> tuple[list[int], list[Array], Array | None]:
        """Keep what the steps made. Returns the positions of rows that have ended, their outputs, and Ran.lengths.

        May lower `made`, to end with fewer steps than were made. Raises what the end of the first step raises.
        """

    @property
    @abstractmethod
    def step_ns(self) -> int:
        """Nanoseconds of one step."""


class RepeatingExecutor(CpuExecutor):
    """Subclasses bring rows `together`."""

    activations: Rows[Any]

    @abstractmethod
    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Together:
        """Rows of a job that make up to `most` steps; new ones join. Raises what the model raises."""

    def run(self, job: Job, stop: Stop) -> Iterator[Ran]:
        """Yields each time that rows end, then continues with the others, if `stop` allows it.

        `job.size` is ignored, because there is no padding; but WHOLE runs a batch of that size to its end, and keeps
        nothing.
        """
        if job.stage == WHOLE:
            yield self.whole(job.slots, job.size)
            return
        slots, most, continues = job.slots, job.steps, True
        while continues:
            ran = self._steps(slots, most, job, stop)
            continues = ran.continues
            if continues:
                slots, most, stop.made = ran.left_of(slots), NO_BOUND, 0
            yield ran

    def _steps(self, slots: Slots, most: int, job: Job, stop: Stop) -> Ran:
        begin = time.perf_counter_ns()
        unit = self.together(slots, most, job, stop)
        gathered = time.perf_counter_ns()
        for made in unit.steps():
            stop.made = made
        inferred = time.perf_counter_ns()
        ended, outputs, lengths = unit.end()
        infer_ns = inferred - gathered
        return Ran(
            outputs,
            gathered - begin,
            infer_ns,
            time.perf_counter_ns() - inferred,
            stages_ns=(infer_ns,),
            step_ns=unit.step_ns,
            steps=unit.made,
            ended=tuple(ended),
            continues=not (stop.at_next_row or stop.now) and 0 < len(ended) < len(slots),
            lengths=lengths,
        )

    def read_from_slots(self, slots: Slots) -> Slots:
        """Rows that have begun have their inputs elsewhere."""
        return self.activations.missing(slots)
