"""Runs a model by its segments on a CPU. The steps of a unit are stages, one after another, or steps of a cell or a
decoder, a segment that repeats: its rows join, make steps together, and leave as they end (Late Batching).

What is kept of rows changes only with steps that ran well, so a unit that fails can run again. It fails only with its
first step: if a later one fails, it ends with those before.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

from app.engine.cpu.executor import CpuExecutor
from app.engine.executor import NO_BOUND, WHOLE, Job, Ran, Stop
from app.engine.pool import Slots


class SegmentExecutor(CpuExecutor, ABC):
    """Subclasses have rows make steps `together`."""

    @abstractmethod
    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Ran:
        """Rows of a job make up to `most` steps, until a row ends or `stop` says so, which gets each step that was
        made. New rows join before. Raises what the first step raises; if a later one fails, those before count.
        """

    def run(self, job: Job, stop: Stop) -> Iterator[Ran]:
        """Yields each time that rows end, then continues with the others, if `stop` allows it."""
        if job.stage == WHOLE:
            yield self.whole(job.slots, job.size)
            return
        slots, most, continues = job.slots, job.steps, True
        while continues:
            ran = self.together(slots, most, job, stop)
            ran.continues = continues = not (stop.at_next_row or stop.now) and 0 < len(ran.ended) < len(slots)
            if continues:
                slots, most, stop.made = ran.left_of(slots), NO_BOUND, 0
            yield ran


def since(begin: int, gathered: int, inferred: int) -> tuple[int, int, int]:
    """The three times of a Ran whose parts began, or ended, at these times; the last one ends now."""
    return gathered - begin, inferred - gathered, time.perf_counter_ns() - inferred
