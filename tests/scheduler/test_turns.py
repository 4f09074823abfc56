"""Best-effort programs take turns by predicted time, and have their share of the device's where one is set."""

from __future__ import annotations

from app.scheduler.forming.turns import Share, Turns
from app.scheduler.types import Klass

REAL, BEST = Klass


def test_what_is_forgotten_begins_at_the_present() -> None:
    turns = Turns()
    turns.take(1, 1000)
    turns.forget(1)
    assert turns.tag(1) == 0


class TestShare:
    def test_a_class_that_asked_for_nothing_has_saved_up_no_time(self) -> None:
        share = Share(0.5)
        for unit in range(100):
            share.start(unit, REAL, 10)
        assert share.due
        share.start(100, BEST, 10)
        assert not share.due

    def test_what_is_beyond_its_part_is_not_forgotten_while_none_waits(self) -> None:
        share = Share(0.1)
        share.start(0, BEST, 10)
        for unit in range(1, 10):
            share.start(unit, REAL, 10)
            assert not share.due
        share.start(10, REAL, 10)
        assert share.due

    def test_a_prediction_is_put_right_once(self) -> None:
        share = Share(0.5)
        share.start(1, REAL, 100)
        share.start(2, BEST, 150)
        assert not share.due
        share.end(2, BEST, 50)
        assert share.due
        share.end(2, BEST, 200)
        assert share.due
