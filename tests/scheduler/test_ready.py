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


def test_take_goes_by_class_then_priority_then_arrival() -> None:
    ready = ReadySet(KEY)
    stand(
        ready,
        make_call(1, klass=Klass.BEST_EFFORT, arrived=0),
        make_call(2, priority=2, arrived=1),
        make_call(3, priority=1, arrived=3),
        make_call(4, priority=1, arrived=2),
    )
    assert ready.count == 4
    assert ready.head() is not None
    assert ids(ready.take(3, 1 << 30)) == [4, 3, 2]
    assert ids(ready.take(3, 1 << 30)) == [1]
    assert ready.count == 0
    assert ready.head() is None


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


def test_rows_of_calls_that_left_are_passed_over() -> None:
    ready = ReadySet(KEY)
    gone, kept = make_call(1, 2, arrived=1), make_call(2, arrived=2)
    stand(ready, gone, kept)
    leave(ready, gone)
    assert ready.count == 1
    assert ready.oldest() == 2
    head = ready.head()
    assert head is not None
    assert head.call is kept
    assert ids(ready.take(5, 1 << 30)) == [2]


def test_oldest_looks_at_every_priority() -> None:
    ready = ReadySet(KEY)
    stand(ready, make_call(1, priority=1, arrived=9), make_call(2, priority=7, arrived=4))
    assert ready.oldest() == 4


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


@pytest.mark.parametrize("late", [False, True], ids=["in-order", "late"])
def test_lanes_are_bounded_by_what_waits(late: bool) -> None:
    ready = ReadySet(KEY)
    stand(ready, *(make_call(i, arrived=10**6) for i in range(3)))
    for ident in range(10, 2_000):
        call = make_call(ident, arrived=10**6 - ident if late else 10**6 + ident)
        stand(ready, call)
        leave(ready, call)
        assert held(ready) <= 2 * 4 + 65
    assert sorted(ids(list(ready.rows()))) == [0, 1, 2]


def test_retry_group_goes_first_among_its_rank() -> None:
    ready = ReadySet(KEY)
    first, later = make_call(1, 2, arrived=1), make_call(2, arrived=2)
    stand(ready, first, later)
    ready.add_retry(ready.take(2, 1 << 30))
    assert (ready.count, ready.free_count) == (3, 1)
    assert ids(ready.take_retry(99, 99)) == [1, 1]
    assert ready.take_retry(99, 99) == []
    assert ready.count == 1


def test_retry_group_yields_to_a_better_row() -> None:
    ready = ReadySet(KEY)
    stand(ready, make_call(1, klass=Klass.BEST_EFFORT))
    ready.add_retry(ready.take(1, 1 << 30))
    stand(ready, make_call(2, arrived=9))
    assert ready.take_retry(99, 99) == []
    assert ids(ready.take(1, 1 << 30)) == [2]
    assert ids(ready.take_retry(99, 99)) == [1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_retry_groups_go_by_their_first_rows(order: tuple[int, int]) -> None:
    ready = ReadySet(KEY)
    stand(ready, make_call(1, klass=Klass.BEST_EFFORT), make_call(2, arrived=5))
    better, worse = ready.take(1, 1 << 30), ready.take(1, 1 << 30)
    for index in order:
        ready.add_retry([better, worse][index])
    assert ids(ready.take_retry(99, 99)) == [2]
    assert ids(ready.take_retry(99, 99)) == [1]


def test_retry_group_that_lost_its_first_row_is_placed_anew() -> None:
    ready = ReadySet(KEY)
    calls = [make_call(i, arrived=i) for i in range(3)]
    stand(ready, *calls)
    rows = ready.take(3, 1 << 30)
    ready.add_retry([rows[0], rows[2]])
    ready.add_retry([rows[1]])
    leave(ready, calls[0])
    assert (ready.count, ready.free_count) == (2, 0)
    assert ids(ready.take_retry(99, 99)) == [1]
    assert ids(ready.take_retry(99, 99)) == [2]
    assert ready.count == 0


def test_a_group_that_must_be_re_run_goes_before_all_rows_of_its_priority() -> None:
    ready = ReadySet(KEY)
    stand(ready, *(make_call(i, arrived=i) for i in range(2, 5)))
    ready.add_retry([ready.take(2, 1 << 30)[1]])
    stand(ready, make_call(2, arrived=2))
    assert ids(ready.take_retry(9, 9)) == [3]


def test_a_policy_cuts_no_rows_behind_a_group_that_must_be_re_run() -> None:
    ready = ReadySet(KEY)
    stand(ready, *(make_call(i, arrived=i, priority=1) for i in range(2, 5)))
    ready.add_retry(ready.take(1, 1 << 30))
    stand(ready, make_call(1, arrived=9))
    assert (ready.count, ready.free_count) == (4, 1)
    assert ids(ready.take(ready.free_count, 1 << 30)) == [1]
    assert ready.free_count == 2  # the group goes first now; were there no room for it, they might hold it
    assert ids(ready.take_retry(99, 99)) == [2]
    assert ready.free_count == 2


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

    def test_rows_are_taken_out_of_turn_once(self) -> None:
        ready, calls = self.sorted_set(10, 30, 20, 5, 10, 7)
        assert ids(ready.similar(3, 1)) == [5, 0, 4]
        taken = ready.take_similar(3, 1)
        assert ids(taken) == [0, 4, 5]  # in the order of service
        for row in taken:
            row.state = RowState.RUNNING
        assert ready.count == 3
        taken[0].stage, taken[0].state = 1, RowState.WAITING  # at another key
        assert ids(list(ready.first(9, 9))) == [1, 2, 3]
        assert ready.length_window(9) == LengthWindow([5, 20, 30], 2, 3, 55, 5, 30)
        taken[0].stage, taken[0].state = 1, RowState.WAITING  # it has gone on, and waits elsewhere
        leave(ready, calls[2])
        assert ids(ready.take(9, 9)) == [1, 3]
        assert ready.count == 0
        assert ready.length_window(9) is None

    def test_none_while_a_group_is_run_again(self) -> None:
        ready, _ = self.sorted_set(10, 30)
        group = make_call(9, lengths=(10,))
        for row in group.rows:
            row.call, row.order = group, (99, 99)
        ready.add_retry(group.rows)
        assert ready.length_window(9) is None

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
