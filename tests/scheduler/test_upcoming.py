"""Rows that are held count as upcoming while the hold lasts, and a long unit waits for them for a bounded time."""

from __future__ import annotations

from app.scheduler.forming.upcoming import Upcoming
from app.scheduler.rows.ready import ReadySet

from .test_ready import enter
from .world import make_call


def test_a_unit_that_would_end_too_late_waits_for_ten_times_its_time() -> None:
    upcoming = Upcoming()
    assert upcoming.wait_until(3, 850) == 880
    assert upcoming.wait_until(30, 860) == 1150
    assert upcoming.wait_until(3, 880) is None
    upcoming.best_effort_started()
    assert upcoming.wait_until(3, 895) == 925


def test_rows_count_as_upcoming_while_they_are_held() -> None:
    upcoming, ready = Upcoming(), ReadySet((1, 0, 0))
    enter(ready, make_call(1, 2))
    upcoming.hold(ready, 20)
    assert (upcoming.waiting, upcoming.starts_at) == (2, 20)
    enter(ready, make_call(2))  # it may end the hold
    assert upcoming.waiting == 2
    upcoming.hold(ready, None)
    assert (upcoming.waiting, upcoming.starts_at) == (0, None)
    upcoming.hold(ready, 20)
    ready.take(3, 9)
    assert (upcoming.waiting, upcoming.starts_at) == (0, None)
