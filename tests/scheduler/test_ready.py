"""Rows that wait, and rows that are expected."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from app.scheduler.forming.upcoming import RegularArrivals, Upcoming
from app.scheduler.rows.ready import LengthWindow, ReadySet
from app.scheduler.rows.ready_table import ReadyTable
from app.scheduler.types import Call, Klass, Row

from .world import make_call

# The ready table keeps rows in order of service, and nothing of rows that have left it.


KEY = (1, 0, 0)


def enter(ready: ReadySet, *calls: Call, edf: bool = False) -> None:
    """Enter the rows of each call, as the scheduler does; those that have started return."""
    for call in calls:
        first = call.deadline if edf and call.deadline is not None else call.arrived
        for index, row in enumerate(call.rows):
            row.call, row.index, row.order = call, index, (call.priority, first, 10 * call.id + index)
        (ready.put_back if call.rows[0].started else ready.add)(call.rows)


def ids(rows: list[Row]) -> list[int]:
    return [row.call.id for row in rows]


def test_the_oldest_row_where_the_order_is_that_of_deadlines() -> None:
    ready = ReadySet(KEY, edf=True)
    calls = [make_call(i, arrived=i, deadline=100 - i) for i in range(9)]
    enter(ready, *calls, edf=True)
    ready.forget(calls[0].rows[0])
    (first,) = ready.take(1, 9)
    assert (first.call, ready.oldest()) == (calls[8], 1)
    ready.put_back([first])
    assert ids(ready.take(7, 9)) == [8, 7, 6, 5, 4, 3, 2]
    assert ready.oldest() == 1


class TestByLength:
    """Rows in order of length, for a set that is sorted so."""

    def sorted_set(self, *lengths: int) -> ReadySet:
        ready, ident = ReadySet(KEY), count()
        calls = [make_call(next(ident), lengths=(length,), arrived=at) for at, length in enumerate(lengths)]
        enter(ready, *calls[:2])
        ready.sort_by_length()  # those that wait, and those that come
        enter(ready, *calls[2:])
        return ready

    def test_rows_on_either_side_of_the_first(self) -> None:
        ready = self.sorted_set(10, 30, 20, 5, 10, 7)
        enter(ready, make_call(9, lengths=(99,), priority=1), make_call(10, lengths=(1,), priority=1))
        assert ready.length_window(9) == LengthWindow([5, 7, 10, 10, 20, 30], 2, 6, 82, 5, 30)
        assert ready.length_window(1) == LengthWindow([7, 10, 10], 1, 6, 82, 5, 30)
        assert ready.longest() == 99
        assert ids(ready.similar(3, 1)) == [5, 0, 4]
        assert ids(ready.take_similar(3, 1)) == [0, 4, 5]
        assert ready.length_window(9) == LengthWindow([5, 20, 30], 2, 3, 55, 5, 30)


def test_what_waits_is_found_without_a_look_at_the_programs_that_have_nothing() -> None:
    table = ReadyTable()
    for program in range(200):
        ready = table.at((program, 0, 0), Klass.REALTIME)
        enter(ready, make_call(program))
        assert list(table.nonempty) == [ready]
        ready.take(1, 1 << 30)
    assert not table.nonempty
    again = table.at((7, 0, 0), Klass.REALTIME)
    enter(again, make_call(1000))
    assert list(table.nonempty) == table.of_program(7, Klass.REALTIME) == [again]
    table.drop_program(7)
    assert not table.nonempty


def test_rows_that_run_again_are_a_set_of_their_own_until_it_is_empty() -> None:
    table = ReadyTable()
    ready = table.at(KEY, Klass.REALTIME)
    calls = [make_call(ident, arrived=ident) for ident in range(4)]
    enter(ready, *calls)
    table.add_again(KEY, Klass.REALTIME, ready.take(2, 9))
    first = table.next_set((), lambda ready, row: row.order)
    assert first is not None
    assert (first.again, first.count, ready.count) == (True, 2, 2)
    table.forget(calls[0].rows[0], KEY)
    table.forget(calls[2].rows[0], KEY)
    assert ids(first.take(9, 9)) == [1]
    assert ids(ready.take(9, 9)) == [3]
    for _ in range(9):
        table.add_again(KEY, Klass.REALTIME, calls[0].rows)
        table.forget(calls[0].rows[0], KEY)
    assert len(table._again) == 1


# Only what comes at a regular rate is expected, and only around the time at which it is due.


def after(times: Iterable[int]) -> RegularArrivals:
    first, *others = times
    arrivals = RegularArrivals(first)
    for time in others:
        arrivals.observe(time)
    return arrivals


def test_one_that_has_not_come_in_time_is_expected_no_longer() -> None:
    regular = after([*range(0, 800, 100), 803])
    assert regular.expected(904) == (904, 905)
    assert regular.expected(905) is None


def test_calls_at_random_are_not_expected() -> None:
    times = [0, 10, 240, 250, 260, 500, 620, 630, 900, 910]
    assert all(after(times).expected(now) is None for now in range(911, 1500, 10))


def test_a_unit_that_would_end_too_late_waits_for_the_expected_call_or_ten_times_its_time() -> None:
    upcoming = Upcoming()
    for at in range(0, 900, 100):
        upcoming.realtime_arrived(1, at)
    assert upcoming.starts_at(850) == 900
    assert upcoming.wait_until(3, 850) == 880
    assert upcoming.wait_until(30, 850) == 900  # it is asked again when the call has arrived, or has not
    assert upcoming.wait_until(3, 880) is None
    upcoming.best_effort_started()
    assert upcoming.wait_until(3, 895) == 900
    upcoming.forget(1)
    assert (upcoming.starts_at(850), upcoming.wait_until(3, 896)) == (None, 925)


def test_rows_count_as_upcoming_while_they_are_held() -> None:
    upcoming, ready = Upcoming(), ReadySet((1, 0, 0))
    enter(ready, make_call(1, 2))
    upcoming.hold(ready, 20)
    assert (upcoming.waiting, upcoming.starts_at(0)) == (2, 20)
    enter(ready, make_call(2))  # it may end the hold
    assert upcoming.waiting == 2
    upcoming.hold(ready, None)
    assert (upcoming.waiting, upcoming.starts_at(0)) == (0, None)
    upcoming.hold(ready, 20)
    ready.take(3, 9)
    assert (upcoming.waiting, upcoming.starts_at(0)) == (0, None)
