"""The batch table by hand: DVABatch's Figure 8, then what fails, ends and leaves.

That its counts are those of its rows, 0 <= completed[s + 1] <= completed[s] <= size and launched >= completed, is
checked after every Step of every trace of several stages (`Book._check_batches`).
"""

from __future__ import annotations

from app.scheduler.rows.batches import BatchTable
from app.scheduler.types import Batch, Klass, Operation, Row

from .world import make_call


class Bench:
    """A table of four stages, and rows moved through it by hand."""

    def __init__(self, stages: int = 4) -> None:
        self.table = BatchTable(stages)

    def launch(self, rows: list[Row], now: int = 0, joins: Batch | None = None) -> Operation:
        return self.table.launch(rows, rows[0].stage, 0, now, joins)

    def complete(self, rows: list[Row]) -> None:
        for row in rows:
            self.table.complete(row)
            row.stage += 1
            self.table.wait(row)

    def run(self, rows: list[Row]) -> Operation:
        operation = self.launch(rows)
        self.complete(rows)
        return operation

    def entries(self) -> list[tuple[int, list[int], list[int]]]:
        """Of each batch its size, and what its stages have launched and completed."""
        return [(batch.size, batch.launched, batch.completed) for batch in self.table.batches]


def rows(count: int, klass: Klass = Klass.REALTIME) -> list[Row]:
    """The rows of a call."""
    call = make_call(0, count, klass=klass)
    for row in call.rows:
        row.call = call
    return call.rows


def test_d5_d6_d7_figure_8() -> None:
    """Two queries are new; two more stretch the batch at its second stage; it is split at the fourth."""
    bench, early, late = Bench(), rows(2), rows(2)
    assert bench.launch(early, now=7) is Operation.NEW
    assert bench.entries() == [(2, [2, 0, 0, 0], [0, 0, 0, 0])]
    bench.complete(early)
    bench.launch(early)
    (batch,) = bench.table.batches
    assert (batch.id, batch.created, batch.completed) == (0, 7, [2, 0, 0, 0])

    assert bench.launch(late, now=9, joins=batch) is Operation.STRETCH
    bench.complete(early)  # executor 2 only updates the statusmap
    assert bench.entries() == [(4, [4, 2, 0, 0], [2, 2, 0, 0])]
    bench.complete(late)
    assert bench.run(late) is Operation.CONTINUE  # they catch up
    assert bench.entries() == [(4, [4, 4, 0, 0], [4, 4, 0, 0])]
    assert bench.run([*early, *late]) is Operation.CONTINUE

    bench.table.divide([*early, *late], 2)
    assert bench.entries() == [(2, [2, 2, 2, 0], [2, 2, 2, 0])] * 2
    assert [batch.created for batch in bench.table.batches] == [7, 7]
    assert all(batch.closed for batch in bench.table.batches)
