"""The batch table of DVABatch (section 5): which rows travel together through the stages of a program, and how far.

It only observes. Whatever a policy cuts, each unit is new (rows without a batch become one), a stretch (rows join a
batch), a split (a part of the waiting rows becomes a batch of its own, closed to stretch), or continues. At all times,
with `completed` for the paper's statusmap,

    0 <= completed[s + 1] <= completed[s] <= size        completed[s] <= launched[s] <= size

Rows of a failed unit, which run again in halves, are split off, and their batch does not wait for them. Rows that end
early, as at a cell, leave their batch. Rows that end at the last stage stay counted until the whole batch has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.types import Batch, Klass, Operation, Row


def whole(rows: Sequence[Row]) -> bool:
    """Whether these rows, which were launched together, are all rows of their batch that have not ended."""
    batch = rows[0].batch
    return batch is None or batch.live <= sum(row.batch is batch for row in rows)


def _launched(row: Row) -> bool:
    """Whether a row has been handed to a worker at its stage."""
    return row.steps > 0 or row.state.runs


class BatchTable:
    """The batches of one program that have not ended, the oldest first."""

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
        """The newest batch of this class: the only one that new rows may join."""
        return next(reversed(self._of[klass].values()), None)

    def launch(self, rows: Sequence[Row], stage: int, bucket: int, now: int, joins: Batch | None = None) -> Operation:
        """Rows of one key will be handed to a worker as one unit. `joins`: the batch that new rows become part of.

        Call it before their states change.
        """
        parts: dict[int, list[Row]] = {}
        fresh: list[Row] = []
        for row in rows:
            if row.batch is None:
                fresh.append(row)
            else:
                parts.setdefault(row.batch.id, []).append(row)
        operation = Operation.CONTINUE
        batches = []
        for ident, part in sorted(parts.items()):
            batch = self._batches[ident]
            batch.standing[stage] -= len(part)
            if batch.standing[stage]:
                batch = self._split_off(part, standing=False)
                operation = Operation.SPLIT
            batches.append(batch)
        if not batches:
            operation = Operation.NEW if joins is None else Operation.STRETCH
            batches = [self._new(now, bucket, rows[0].call.klass) if joins is None else joins]
        elif len(batches) > 1 or fresh:
            operation = Operation.STRETCH
        target = batches[0]
        for row in rows:
            if row.batch is not target:
                self._move(row, target)
            if not _launched(row):
                target.launched[stage] += 1
        return operation

    def divide(self, rows: Sequence[Row], size: int) -> None:
        """Split rows that wait at one stage into batches of `size`, in their order."""
        for first in range(0, len(rows), size):
            self._split_off(rows[first : first + size])

    def fail(self, rows: Sequence[Row]) -> None:
        """Rows of a failed unit, which wait to run again together, become a batch of their own."""
        for row in rows:
            if row.batch is not None and not _launched(row):  # they will be launched there once more
                row.batch.launched[row.stage] -= 1
        self._split_off(rows, standing=False)

    def wait(self, row: Row) -> None:
        """A row waits at its stage."""
        if row.batch is not None:
            row.batch.standing[row.stage] += 1

    def complete(self, row: Row) -> None:
        """A row has completed its stage. Call it before `row.stage` changes."""
        if row.batch is not None:
            row.batch.completed[row.stage] += 1

    def pass_on(self, row: Row) -> None:
        """A row has moved to the next stage within its unit. Call it before `row.stage` changes."""
        batch = row.batch
        if batch is not None:
            batch.completed[row.stage] += 1
            batch.launched[row.stage + 1] += 1

    def finish(self, row: Row) -> None:
        """A row has ended well at the last stage. It stays counted in its batch."""
        batch = row.batch
        if batch is not None:
            batch.completed[row.stage] += 1
            row.batch = None
            batch.live -= 1
            self._forget_if_over(batch)

    def leave(self, row: Row, *, standing: bool) -> None:
        """A row has ended before its batch. `standing`: it was waiting."""
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

    def _split_off(self, rows: Sequence[Row], *, standing: bool = True) -> Batch:
        """Split these rows off as a batch of their own, as old as the oldest batch that they leave. All are closed to
        stretch.

        `standing`: they are counted as waiting at their stage.
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
        for stage in range(row.stage + _launched(row)):
            target.launched[stage] += 1
        for stage in range(row.stage):
            target.completed[stage] += 1

    def _uncount(self, row: Row, batch: Batch) -> None:
        batch.size -= 1
        batch.live -= 1
        for stage in range(row.stage + _launched(row)):
            batch.launched[stage] -= 1
        for stage in range(row.stage):
            batch.completed[stage] -= 1
        self._forget_if_over(batch)

    def _forget_if_over(self, batch: Batch) -> None:
        if not batch.live:
            self._batches.pop(batch.id, None)
            self._of[batch.klass].pop(batch.id, None)
