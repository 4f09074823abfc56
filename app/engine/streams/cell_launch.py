"""The launches of a unit; those of a cell, one for each step, from which rows leave as they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.engine.executor import NO_BOUND, WHOLE, Job, Ran, Stop
from app.engine.pool import Slots
from app.engine.streams.cells import CellStreamExecutor
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.launch import Launch, stage_launches
from app.engine.streams.threads import StreamWorker


def launches(job: Job, executor: StreamExecutor, stop: Stop, worker: StreamWorker) -> Iterator[Launch]:
    """The steps of a unit in order, not launched yet; at least one. A stop counts when the next one is asked for."""
    if isinstance(executor, CellStreamExecutor) and executor.steps is not None:
        return _cell_launches(job, executor, stop, worker)
    return stage_launches(job, executor, stop, worker)


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
