"""Rows that wait, and rows that are expected."""

from __future__ import annotations

from app.scheduler.rows.ready import LengthWindow, ReadySet
from app.scheduler.types import Call, Klass, Row, RowState

from .world import make_call

# The ready table keeps rows in order of service, and nothing of rows that have left it.


KEY = (1, 0, 0)


def enter(ready: ReadySet, *calls: Call) -> None:
    """Enter the rows of each call, as the scheduler does; those that have started return."""
    for call in calls:
        for index, row in enumerate(call.rows):
            row.call, row.order = call, (call.priority, call.arrived, 10 * call.id + index)
        (ready.put_back if call.rows[0].state is RowState.BETWEEN else ready.add)(call.rows)


def ids(rows: list[Row]) -> list[int]:
    return [row.call.id for row in rows]


def test_rows_on_either_side_of_the_first_by_length() -> None:
    """Of a set that is sorted so: those that wait then, and those that come."""
    ready = ReadySet(KEY, Klass.REALTIME, {})
    calls = [make_call(at, lengths=(length,), arrived=at) for at, length in enumerate((10, 30, 20, 5, 10, 7))]
    enter(ready, *calls[:2])
    ready.length_window(9)
    enter(ready, *calls[2:])
    enter(ready, make_call(9, lengths=(99,), priority=1), make_call(10, lengths=(1,), priority=1))
    assert ready.length_window(9) == LengthWindow([5, 7, 10, 10, 20, 30], 2, 6, 82, 5, 30)
    assert ready.length_window(1) == LengthWindow([7, 10, 10], 1, 6, 82, 5, 30)
    assert ids(ready.similar(3, 1)) == [5, 0, 4]
    assert ids(ready.take_similar(3, 1)) == [0, 4, 5]
    assert ready.length_window(9) == LengthWindow([5, 20, 30], 2, 3, 55, 5, 30)
