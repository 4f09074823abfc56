"""The ready table keeps rows in order of service and holds no memory for rows whose calls have left."""

from __future__ import annotations

from collections import deque

import pytest

from app.scheduler.rows.lanes import LengthWindow, put_in
from app.scheduler.rows.ready import ReadySet
from app.scheduler.rows.ready_table import ReadyTable
from app.scheduler.types import Call, Klass, Row, RowState

from .world import make_call

KEY = (1, 0, 0)


def stand(ready: ReadySet, *calls: Call) -> None:
    """Enter the rows of each call, as the scheduler does; those that have started return."""
    for call in calls:
        for index, row in enumerate(call.rows):
            row.call, row.index, row.order = call, index, (call.arrived, 10 * call.id + index)
        if call.rows[0].started:
            ready.add_all(call.rows)
        else:
            ready.add(call.rows)


def leave(ready: ReadySet, call: Call) -> None:
    call.alive = False
    for row in call.rows:
        row.state = RowState.ENDED
        ready.forget(row)


def ids(rows: list[Row] | None) -> list[int]:
    return [row.call.id for row in rows or []]


def held(ready: ReadySet) -> int:
    return sum(len(lane.rows) for lane in ready._lanes.values())


def test_first_names_rows_in_order_of_service_and_leaves_them() -> None:
    """As `take` would, but for retry groups, rows of calls that left and nothing moved."""
    ready = ReadySet(KEY)
    low, gone, late, urgent = (
        make_call(1, 2, priority=1),
        make_call(2),
        make_call(3, arrived=9),
        make_call(4, arrived=8),
    )
    stand(ready, low, gone, late, urgent)
    leave(ready, gone)
    group = make_call(5)
    group.rows[0].call = group
    ready.add_retry(group.rows)
    assert ids(list(ready.first(3, 99))) == [4, 3, 1]
    assert ids(list(ready.first(99, 99))) == [4, 3, 1, 1]
    assert list(ready.first(0, 99)) == []
    assert ids(ready.take(99, 99)) == [4, 3, 1, 1]


@pytest.mark.parametrize(("n", "room", "expected"), [(2, 1, [1, 2]), (2, 0, [2, 4]), (9, 1, [1, 2, 4]), (9, 0, [2, 4])])
def test_first_passes_over_rows_without_room_as_take_does(n: int, room: int, expected: list[int]) -> None:
    ready = ReadySet(KEY)
    calls = [make_call(ident) for ident in (1, 2, 3, 4)]
    for call in calls[1::2]:
        call.rows[0].started = True
    stand(ready, *calls)
    assert ids(list(ready.first(n, room))) == expected
    assert ids(ready.take(n, room)) == expected
    assert ids(ready.take(9, 9)) == [ident for ident in (1, 2, 3, 4) if ident not in expected]  # in their order


def test_oldest_where_rows_stand_by_deadline() -> None:
    ready = ReadySet(KEY, edf=True)
    calls = [make_call(i, arrived=i) for i in range(9)]
    for call in calls:
        call.rows[0].call, call.rows[0].order = call, (100 - call.id, call.id)
        ready.add(call.rows)
    leave(ready, calls[0])
    assert ready.oldest() == 1
    (last,) = ready.take(1, 9)
    assert last.call is calls[8]
    for again in range(200):  # it comes back from a step, and goes again
        ready.add_all([last])
        assert ready.take(1, 9) == [last]
        assert ready.oldest() == 1, again
    assert len(ready._arrivals) < 100
    ready.add_retry([calls[1].rows[0]])
    assert ready.oldest() == 2
    calls[2].rows[0].stage = 1  # it waits at another key
    assert ready.oldest() == 3


def test_rows_come_back_to_their_places() -> None:
    rows = [Row(i) for i in range(40)]
    for row in rows:
        row.order = (row.slot, 0)
    for places in (range(5), range(35, 40), range(12, 20), range(0, 40, 7), range(0), (0, 39), range(40)):
        come = [rows[place] for place in places]
        others = deque(row for row in rows if row not in come)
        if come:
            put_in(others, come)
        assert list(others) == rows, places


def test_a_group_that_must_be_re_run_goes_before_all_rows_of_its_priority() -> None:
    ready = ReadySet(KEY)
    stand(ready, *(make_call(i, arrived=i) for i in range(2, 5)))
    ready.add_retry([ready.take(2, 1 << 30)[1]])
    stand(ready, make_call(2, arrived=2))
    assert ids(ready.take_retry(9, 9)) == [3]


@pytest.mark.parametrize(
    ("started", "room", "most", "expected"),
    [(0, 9, 9, 3), (0, 2, 9, 2), (0, 0, 9, 0), (2, 0, 9, 2), (2, 1, 9, 3), (3, 0, 9, 3), (3, 0, 1, 1)],
)
def test_of_a_retry_group_goes_what_finds_room(started: int, room: int, most: int, expected: int) -> None:
    """Rows that hold something on the device need no room; the rest stays first in line."""
    ready = ReadySet(KEY)
    stand(ready, make_call(1, 3))
    rows = ready.take(3, 99)
    for row in rows[:started]:
        row.started = True
    ready.add_retry(rows)
    assert ready.take_retry(most, room) == rows[:expected]
    assert ready.count == 3 - expected
    assert ready.take_retry(9, 9) == rows[expected:]


def test_rows_before_a_level() -> None:
    ready = ReadySet(KEY)
    low, top = make_call(2, 2, priority=2), make_call(4, 1, priority=1)
    stand(ready, make_call(1, 3, priority=1), low, make_call(3, klass=Klass.BEST_EFFORT), top)
    levels = [(Klass.REALTIME, 0), (Klass.REALTIME, 1), (Klass.REALTIME, 2), (Klass.BEST_EFFORT, 9)]
    assert [ready.before(level) for level in levels] == [0, 4, 6, 7]
    ready.add_retry(ready.take(2, 99))
    assert [ready.before(level) for level in levels] == [0, 4, 6, 7]
    leave(ready, low)
    leave(ready, top)
    assert [ready.before(level) for level in levels] == [0, 3, 3, 4]


class TestByLength:
    """Rows in order of length, for a set that is sorted so."""

    def sorted_set(self, *lengths: int) -> tuple[ReadySet, list[Call]]:
        ready = ReadySet(KEY)
        calls = [make_call(ident, lengths=(length,), arrived=ident) for ident, length in enumerate(lengths)]
        stand(ready, *calls[:2])
        ready.sort_by_length()  # those that stand there, and those that come
        stand(ready, *calls[2:])
        return ready, calls

    def test_rows_on_either_side_of_the_first(self) -> None:
        ready, _ = self.sorted_set(10, 30, 20, 5, 10, 7)
        assert ready.length_window(9) == LengthWindow([5, 7, 10, 10, 20, 30], 2, 6, 82, 5, 30)
        assert ready.length_window(1) == LengthWindow([7, 10, 10], 1, 6, 82, 5, 30)

    def test_memory_is_bounded_by_what_waits(self) -> None:
        ready, _ = self.sorted_set(1)
        for ident in range(1, 2_000):
            stand(ready, make_call(ident, lengths=(100 + ident % 7,), arrived=ident))
            first = ready.length_window(9)
            assert first is not None
            for row in ready.take_similar(1, 0) if ident % 2 else ready.take(1, 9):
                row.state = RowState.RUNNING
        assert ready.count == 1
        assert held(ready) <= 70


def test_rows_picked_by_length_that_are_put_back_stand_there_once() -> None:
    ready = ReadySet(KEY)
    stand(ready, *(make_call(ident, lengths=(length,), arrived=ident) for ident, length in enumerate((5, 9, 5, 9))))
    ready.sort_by_length()
    picked = ready.take_similar(2, 0)
    assert ids(picked) == [0, 2]
    for row in picked:
        row.state = RowState.RUNNING
    for row in picked:
        row.state = RowState.WAITING
    ready.add_all(picked)
    assert ids(list(ready.first(4, 4))) == [0, 1, 2, 3]
    assert ids(ready.take(4, 4)) == [0, 1, 2, 3]
    assert ready.count == 0


def test_lanes_are_bounded_whatever_priorities_clients_name() -> None:
    """Each step looks at all of them."""
    ready = ReadySet(KEY)
    stand(ready, make_call(2_000, priority=2_000))
    for ident in range(1_000):
        stand(ready, make_call(ident, priority=ident))
        assert ids(ready.take(1, 1)) == [ident]
    assert len(ready._levels) == len(ready._lanes) < 100
    assert (ids(ready.take(2, 2)), ready.count) == ([2_000], 0)


def test_what_waits_is_found_without_a_look_at_the_programs_that_have_nothing() -> None:
    table = ReadyTable()
    for program in range(200):
        ready = table.at((program, 0, 0), Klass.REALTIME)
        stand(ready, make_call(program))
        assert table.waiting() == [ready]
        ready.take(1, 1 << 30)
    assert table.waiting() == []
    again = table.at((7, 0, 0), Klass.REALTIME)
    stand(again, make_call(1000))
    assert table.waiting() == table.of_program(7, Klass.REALTIME) == [again]
    table.drop_program(7)
    assert table.waiting() == []
