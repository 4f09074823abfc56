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
    def test_a_prediction_is_put_right_once(self) -> None:
        share = Share(0.5)
        share.start(1, REAL, 100)
        share.start(2, BEST, 150)
        assert not share.due
        share.end(2, BEST, 50)
        assert share.due
        share.end(2, BEST, 200)
        assert share.due
