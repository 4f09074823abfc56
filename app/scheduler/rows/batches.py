"""The batch table of DVABatch (section 5): which rows travel together through the stages of a program, and how far.

It only observes. Each unit that a policy cuts is new, a stretch (rows join a batch), a split (a part of the waiting
rows becomes a batch, closed to stretch), or continues. With `completed` for the paper's statusmap,

    0 <= completed(s + 1) <= completed(s) <= launched(s) <= size

Rows of a failed unit are split off. Rows that end early leave their batch; those that end at the last stage count until
all have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.types import Batch, Klass, Operation, Row


def whole(rows: Sequence[Row]) -> bool:
    """Whether these rows, which were launched together, are all rows of their batch that have not ended."""
    batch = rows[0].batch
    return batch is None or len(batch.rows) <= sum(row.batch is batch for row in rows)


class BatchTable:
    """The batches of one program that have not ended, by id, the oldest first."""

    __slots__ = ("_next", "batches")

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self._next = 0

    def latest(self, klass: Klass) -> Batch | None:
        """The newest batch of this class: the only one that new rows may join."""
        return next((batch for batch in reversed(self.batches.values()) if batch.klass is klass), None)

    def launch(self, rows: Sequence[Row], stage: int, bucket: int, now: int, joins: Batch | None = None) -> Operation:
        """Rows of one key will be handed to a worker as one unit. `joins`: the batch that new rows become part of.

        Call it before their states change.
        """
        parts: dict[Batch, list[Row]] = {}
        fresh = False
        for row in rows:
            if row.batch is None:
                fresh = True
            else:
                parts.setdefault(row.batch, []).append(row)
        operation = Operation.CONTINUE
        batches = []
        for batch, part in sorted(parts.items(), key=lambda entry: entry[0].id):
            waiting = sum(row.stage == stage and not row.state.runs for row in batch.rows)
            if waiting > sum(not row.state.runs for row in part):  # those with which a worker continues run
                batch = self.split_off(part)
                operation = Operation.SPLIT
            batches.append(batch)
        if not batches:
            operation = Operation.NEW if joins is None else Operation.STRETCH
            batches = [self._new(now, bucket, rows[0].call.klass) if joins is None else joins]
        elif len(batches) > 1 or fresh:
            operation = Operation.STRETCH
        for row in rows:
            if row.batch is not batches[0]:
                self._move(row, batches[0])
        return operation

    def divide(self, rows: Sequence[Row], size: int) -> None:
        """Split rows that wait at one stage into batches of `size`, in their order."""
        for first in range(0, len(rows), size):
            self.split_off(rows[first : first + size])

    def split_off(self, rows: Sequence[Row]) -> Batch:
        """Split these rows off as a batch of their own, as old as the oldest batch that they leave. All are closed to
        stretch.
        """
        batches = [row.batch for row in rows if row.batch is not None]
        created = min((batch.created for batch in batches), default=0)
        part = self._new(created, batches[0].bucket if batches else 0, rows[0].call.klass)
        part.closed = True
        for batch in batches:
            batch.closed = True
        for row in rows:
            self._move(row, part)
        return part

    def finish(self, row: Row) -> None:
        """A row has ended well at the last stage. It stays counted in its batch."""
        if row.batch is not None:
            row.batch.ended += 1
            self.leave(row)

    def leave(self, row: Row) -> None:
        """A row has ended."""
        batch, row.batch = row.batch, None
        if batch is not None:
            del batch.rows[row]
            if not batch.rows:
                del self.batches[batch.id]

    def _new(self, now: int, bucket: int, klass: Klass) -> Batch:
        batch = self.batches[self._next] = Batch(self._next, now, bucket, klass)
        self._next += 1
        return batch

    def _move(self, row: Row, target: Batch) -> None:
        self.leave(row)
        row.batch = target
        target.rows[row] = None
