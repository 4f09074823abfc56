"""A lane keeps its rows in two orders: of arrival, and of length once that is asked for."""

from __future__ import annotations

from app.scheduler.rows.lanes import Lane
from app.scheduler.types import Row, RowState

from .world import make_call


def stand(lane: Lane, *lengths: int, first: int = 0) -> list[Row]:
    rows = []
    for number, length in enumerate(lengths, first):
        (row,) = make_call(number, lengths=(length,)).rows
        row.call, row.order = make_call(number), (number, number)
        lane.rows.append(row)
        lane.count_in(row)
        rows.append(row)
    return rows


def by_length(lane: Lane) -> list[int]:
    assert lane.by_length is not None
    return [length for length, _, _ in lane.by_length]


def test_rows_that_come_and_go_keep_the_order_of_length() -> None:
    lane = Lane()
    rows = stand(lane, 5, 3, 4)
    assert lane.by_length is None
    lane.sort()
    rows += stand(lane, 4, 1, first=3)
    assert (by_length(lane), lane.total, lane.count) == ([1, 3, 4, 4, 5], 17, 5)
    assert [lane.place(row) for row in rows] == [4, 1, 2, 3, 0]
    lane.count_out(rows[2])
    assert (by_length(lane), lane.total, lane.count) == ([1, 3, 4, 5], 13, 4)


def test_rows_taken_out_of_turn_are_passed_over() -> None:
    lane = Lane(by_length=True)
    first, second, third = stand(lane, 5, 3, 4)
    first.state = second.state = RowState.RUNNING
    lane.picked = True
    assert [lane.waits(row) for row in (first, second, third)] == [False, False, True]
    first.state, first.stage = RowState.WAITING, 1  # at its next stage, in another lane
    second.state, second.grouped = RowState.WAITING, True  # its unit failed, and it is run again with others
    assert lane.head() is third
    lane.rebuild()
    assert list(lane.rows) == [third]
    assert not lane.picked
