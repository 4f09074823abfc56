"""The batch table (DVABatch, section 5): which rows travel together through the stages of a program, and how far.

A batch is what a policy has put together. Its entry counts, by stage, the rows that were ever handed to a worker there
(`launched`) and those that have completed it (`completed`, the paper's statusmap), so that at all times

    0 <= completed[s + 1] <= completed[s] <= size        completed[s] <= launched[s] <= size

The table observes: whatever a policy cuts, each unit is one of four operations.

    new       rows that had no batch: they are one now
    stretch   rows join a batch: those that begin are told to (`joins`) and catch up with it; or rows of several
              batches, or some without one, run as one unit
    split     fewer rows of a batch than wait here: they are a batch of their own from now on, closed to stretch
    on        a batch continues as it is

Rows that fail, and run again in halves, are split off: nobody waits for them. Rows that end early, as those of a cell
do one by one, leave their batch. Rows that end at the last stage stay counted until the last of their batch has.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.types import Batch, Klass, Operation, Row


def whole(rows: Sequence[Row]) -> bool:
    """Whether rows that were launched together are all of their batch that has not ended."""
    batch = rows[0].batch
    return batch is None or batch.live <= sum(row.batch is batch for row in rows)


class BatchTable:
    """The batches of one program that are not over, oldest entry first."""

    __slots__ = ("_batches", "_next", "_of", "_stages")

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._batches: dict[int, Batch] = {}
        self._of: dict[Klass, dict[int, Batch]] = {klass: {} for klass in Klass}
        self._next = 0

    @property
    def batches(self) -> Sequence[Batch]:
        return list(self._batches.values())

    def latest(self, klass: Klass) -> Batch | None:
        """The last entry of rows of this class: the only one that more of them may be stretched to."""
        return next(reversed(self._of[klass].values()), None)

    def launch(self, rows: Sequence[Row], stage: int, bucket: int, now: int, joins: Batch | None = None) -> Operation:
        """Rows of one key go to a worker as one unit. `joins`: the batch that those without one shall belong to.

        Best-effort rows that fill the padding of a real-time unit are a batch of their own.
        """
        klass = rows[0].call.klass
        if rows[-1].call.klass is not klass:
            filling = [row for row in rows if row.call.klass is not klass]
            rows = rows[: len(rows) - len(filling)]
            self.launch(filling, stage, bucket, now)
        parts: dict[int, list[Row]] = {}
        fresh: list[Row] = []
        for row in rows:
            if row.batch is None:
                fresh.append(row)
            else:
                parts.setdefault(row.batch.id, []).append(row)
        operation = Operation.ON
        batches = []
        for ident, part in sorted(parts.items()):
            batch = self._batches[ident]
            batch.standing[stage] -= len(part)
            if batch.standing[stage]:
                batch = self._apart(part, standing=False)
                operation = Operation.SPLIT
            batches.append(batch)
        if not batches:
            operation = Operation.NEW if joins is None else Operation.STRETCH
            batches = [self._new(now, bucket, klass) if joins is None else joins]
        elif len(batches) > 1 or fresh:
            operation = Operation.STRETCH
        target = batches[0]
        for row in rows:
            if row.batch is not target:
                self._move(row, target)
            if row.entered == stage:
                row.entered = stage + 1
                target.launched[stage] += 1
        return operation

    def divide(self, rows: Sequence[Row], size: int) -> None:
        """Rows that wait at one stage are split into batches of `size`, in their order."""
        for first in range(0, len(rows), size):
            self._apart(rows[first : first + size])

    def fail(self, rows: Sequence[Row]) -> None:
        """Rows whose unit failed, and that will run again together, are a batch of their own."""
        for row in rows:
            if row.batch is not None and row.entered > row.stage:  # they will be launched there once more
                row.batch.launched[row.stage] -= 1
                row.entered = row.stage
        self._apart(rows, standing=False)

    def wait(self, row: Row) -> None:
        """A row waits at the stage that it has reached."""
        if row.batch is not None:
            row.batch.standing[row.stage] += 1

    def complete(self, row: Row) -> None:
        """A row moves from its stage to the next one; called before it does."""
        if row.batch is not None:
            row.batch.completed[row.stage] += 1

    def pass_on(self, row: Row) -> None:
        """A row has moved to the next stage within its unit; called before its stage is counted up."""
        batch = row.batch
        if batch is not None:
            batch.completed[row.stage] += 1
            if row.entered == row.stage + 1:
                row.entered += 1
                batch.launched[row.stage + 1] += 1

    def finish(self, row: Row) -> None:
        """A row has ended well at the last stage, together with its batch: it stays counted."""
        batch = row.batch
        if batch is not None:
            batch.completed[row.stage] += 1
            row.batch = None
            batch.live -= 1
            self._forget_if_over(batch)

    def leave(self, row: Row, *, standing: bool) -> None:
        """A row has ended without its batch. `standing`: it waited."""
        batch = row.batch
        if batch is not None:
            if standing:
                batch.standing[row.stage] -= 1
            self._uncount(row, batch)
            row.batch = None

    def _new(self, now: int, bucket: int, klass: Klass, *, closed: bool = False) -> Batch:
        zeros = [0] * self._stages
        batch = Batch(self._next, now, bucket, klass, zeros, list(zeros), list(zeros), closed=closed)
        self._batches[batch.id] = self._of[klass][batch.id] = batch
        self._next += 1
        return batch

    def _apart(self, rows: Sequence[Row], *, standing: bool = True) -> Batch:
        """These rows become a batch of their own, as old as the oldest that they leave, and closed as those are.

        `standing`: they are counted among those that wait at their stage.
        """
        batches = [row.batch for row in rows if row.batch is not None]
        created = min((batch.created for batch in batches), default=0)
        part = self._new(created, batches[0].bucket if batches else 0, rows[0].call.klass, closed=True)
        for row in rows:
            if row.batch is not None:
                row.batch.closed = True
                if standing:
                    row.batch.standing[row.stage] -= 1
            self._move(row, part)
            if standing:
                part.standing[row.stage] += 1
        return part

    def _move(self, row: Row, target: Batch) -> None:
        if row.batch is not None:
            self._uncount(row, row.batch)
        row.batch = target
        target.size += 1
        target.live += 1
        for stage in range(row.entered):
            target.launched[stage] += 1
        for stage in range(row.stage):
            target.completed[stage] += 1

    def _uncount(self, row: Row, batch: Batch) -> None:
        batch.size -= 1
        batch.live -= 1
        for stage in range(row.entered):
            batch.launched[stage] -= 1
        for stage in range(row.stage):
            batch.completed[stage] -= 1
        self._forget_if_over(batch)

    def _forget_if_over(self, batch: Batch) -> None:
        if not batch.live:
            self._batches.pop(batch.id, None)
            self._of[batch.klass].pop(batch.id, None)
