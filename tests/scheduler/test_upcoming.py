"""Only what comes at a regular rate is expected, and only around the time at which it is due."""

from __future__ import annotations

from collections.abc import Iterable

from app.scheduler.forming.upcoming import RegularArrivals, Upcoming
from app.scheduler.rows.ready import ReadySet

from .test_ready import enter
from .world import make_call


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
