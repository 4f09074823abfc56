"""Runs a model by its segments on a CPU. The steps of a unit are stages, one after another, or steps of a cell or a
decoder, a segment that repeats: its rows join, make steps together, and leave as they end (Late Batching).

What is kept of rows changes only with steps that ran well, so a unit that fails can run again. It fails only with its
first step: if a later one fails, it ends with those before.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from app.contract import Array
from app.engine.cpu.executor import CpuExecutor
from app.engine.executor import NO_BOUND, WHOLE, Job, Ran, Stop
from app.engine.pool import Slots


class Together(ABC):
    """Rows of one unit, brought together to make steps.

    `made`: steps that ran well. `times`: nanoseconds of each, if they are stages. `step_ns`: of one step, if not.
    """

    made = 0
    times: Sequence[int] = ()
    step_ns: int | None = None

    @abstractmethod
    def steps(self) -> Iterator[int]:
        """Make steps until a row ends or the unit is stopped, and yield `made` after each. What the first step raises
        is raised; once something was yielded, an error ends the steps."""

    @abstractmethod
    def end(self) -> tuple[list[int], list[Array], Array | None]:
        """Keep what the steps made. Returns the positions of rows that have ended of a segment that repeats, the
        outputs, and Ran.lengths.

        May lower `made`, to end with fewer steps than were made. Raises what the end of the first step raises.
        """


class SegmentExecutor(CpuExecutor, ABC):
    """Subclasses bring rows `together`."""

    @abstractmethod
    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Together:
        """Rows of a job that make up to `most` steps; new ones join. Raises what the model raises."""

    def run(self, job: Job, stop: Stop) -> Iterator[Ran]:
        """Yields each time that rows end, then continues with the others, if `stop` allows it."""
        if job.stage == WHOLE:
            yield self.whole(job.slots, job.size)
            return
        slots, most, continues = job.slots, job.steps, True
        while continues:
            ran = self._ran(partial(self.together, slots, most, job, stop), stop)
            ran.continues = continues = not (stop.at_next_row or stop.now) and 0 < len(ran.ended) < len(slots)
            if continues:
                slots, most, stop.made = ran.left_of(slots), NO_BOUND, 0
            yield ran

    def _ran(self, together: Callable[[], Together], stop: Stop) -> Ran:
        begin = time.perf_counter_ns()
        unit = together()
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
            stages_ns=tuple(unit.times) or (infer_ns,),
            step_ns=unit.step_ns,
            steps=unit.made,
            ended=tuple(ended),
            lengths=lengths,
        )
