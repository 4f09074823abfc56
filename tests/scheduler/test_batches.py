"""The batch table by hand: DVABatch's Figure 8, then what fails, ends and leaves.

That its counts are those of its rows, 0 <= completed[s + 1] <= completed[s] <= size and launched >= completed, is
checked after every Step of every trace of several stages (`Book._check_batches`).
"""

from __future__ import annotations

import pytest

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
    assert bench.run(late) is Operation.ON  # they catch up
    assert bench.entries() == [(4, [4, 4, 0, 0], [4, 4, 0, 0])]
    assert bench.run([*early, *late]) is Operation.ON

    bench.table.divide([*early, *late], 2)
    assert bench.entries() == [(2, [2, 2, 2, 0], [2, 2, 2, 0])] * 2
    assert [batch.created for batch in bench.table.batches] == [7, 7]
    assert all(batch.closed for batch in bench.table.batches)


def test_fewer_rows_than_stand_there_are_split_off() -> None:
    bench, batch = Bench(), rows(3)
    bench.run(batch)
    assert not bench.table.batches[0].closed
    assert bench.run(batch[:2]) is Operation.SPLIT
    assert bench.entries() == [(1, [1, 0, 0, 0], [1, 0, 0, 0]), (2, [2, 2, 0, 0], [2, 2, 0, 0])]
    assert bench.table.latest(Klass.REALTIME) is batch[0].batch
    assert all(entry.closed for entry in bench.table.batches)  # neither is stretched from now on
    assert bench.run(batch[2:]) is Operation.ON


def test_a_batch_is_over_when_its_last_row_has_ended() -> None:
    bench, batch = Bench(1), rows(2)
    bench.launch(batch)
    bench.table.finish(batch[0])
    assert bench.entries() == [(2, [2], [1])]
    bench.table.finish(batch[1])
    assert bench.table.batches == []
    assert bench.table.latest(Klass.REALTIME) is None


def test_rows_of_a_cell_join_and_leave_one_by_one() -> None:
    bench, early, late = Bench(1), rows(2), rows(1)
    bench.launch(early)
    for row in early:
        bench.table.wait(row)  # between two steps
    assert bench.launch([*early, *late]) is Operation.STRETCH
    bench.table.leave(early[0], standing=False)
    for row in (early[1], late[0]):
        bench.table.wait(row)
    assert bench.entries() == [(2, [2], [0])]
    assert bench.launch([early[1], late[0]]) is Operation.ON


@pytest.mark.parametrize("standing", [True, False])
def test_a_row_that_leaves_is_as_if_it_had_not_been(standing: bool) -> None:
    bench, batch = Bench(), rows(2)
    bench.run(batch)
    if not standing:
        bench.launch(batch)
    bench.table.leave(batch[0], standing=standing)
    assert bench.entries() == [(1, [1, int(not standing), 0, 0], [1, 0, 0, 0])]
    assert batch[0].batch is None
    assert bench.table.batches[0].standing == [0, int(standing), 0, 0]


def test_rows_that_failed_are_apart_and_launched_again() -> None:
    bench, batch = Bench(), rows(3)
    bench.run(batch)
    bench.launch(batch)
    bench.table.fail(batch[:2])
    for row in batch[:2]:
        bench.table.wait(row)
    assert bench.entries() == [(1, [1, 1, 0, 0], [1, 0, 0, 0]), (2, [2, 0, 0, 0], [2, 0, 0, 0])]
    assert bench.run(batch[:2]) is Operation.ON
    assert bench.table.batches[1].launched == [2, 2, 0, 0]
