"""What every policy owes the scheduler, then the cases of each."""

from __future__ import annotations

from itertools import product

import pytest

from app.scheduler.policies import POLICIES, Cut, Hold, KeyView, make

IDLE = [(1,), (4,), (8, 2), (8, 8, 1)]
VIEWS = [
    (KeyView(ready, min(idle[0], full), full, oldest, delay), idle, now)
    for idle, ready, full, oldest, delay, now in product(IDLE, (1, 3, 8, 40), (1, 4, 8), (0, 90), (0, 50), (100, 1_000))
]


@pytest.mark.parametrize("name", POLICIES)
class TestEveryPolicy:
    def test_cut_can_be_run(self, name: str) -> None:
        """At least one row, no more than wait or than may run, at a size that an idle worker takes."""
        for view, idle, now in VIEWS:
            decision = make(name).decide(view, idle, now)
            if isinstance(decision, Cut):
                assert 1 <= decision.rows <= min(view.ready, view.limit, decision.size)
                assert decision.size <= idle[0]
                assert decision.reason in {"full", "idle", "delay"}

    def test_hold_ends(self, name: str) -> None:
        """A key is held until a time to come, and not beyond the delay of its oldest row."""
        for view, idle, now in VIEWS:
            decision = make(name).decide(view, idle, now)
            if isinstance(decision, Hold):
                assert decision.until is not None
                assert now < decision.until <= view.oldest + view.max_delay
                assert isinstance(make(name).decide(view, idle, decision.until), Cut)

    def test_full_batch_leaves_at_once(self, name: str) -> None:
        decision = make(name).decide(KeyView(8, 8, 8, oldest=100, max_delay=10**9), (8,), 100)
        assert decision == Cut(8, 8, "full")

    def test_equal_views_get_equal_answers(self, name: str) -> None:
        policy = make(name)
        answers = [[policy.decide(view, idle, now) for view, idle, now in VIEWS] for _ in range(2)]
        assert answers[0] == answers[1]


def test_unknown_policy_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no_wait, window, static, got 'fifo'"):
        make("fifo")


@pytest.mark.parametrize(
    ("ready", "limit", "expected"),
    [
        pytest.param(1, 8, Cut(1, 1, "idle"), id="one-row"),
        pytest.param(9, 8, Cut(8, 8, "full"), id="more-than-fit"),
        pytest.param(9, 2, Cut(2, 2, "idle"), id="only-a-small-worker"),
    ],
)
def test_no_wait_takes_what_is_there(ready: int, limit: int, expected: Cut) -> None:
    assert make("no_wait").decide(KeyView(ready, limit, 8, 0, 10**9), (limit,), 0) == expected


@pytest.mark.parametrize(
    ("ready", "now", "expected"),
    [
        pytest.param(3, 149, Hold(150), id="young"),
        pytest.param(3, 150, Cut(3, 3, "delay"), id="due"),
        pytest.param(8, 100, Cut(8, 8, "full"), id="full"),
        pytest.param(30, 100, Cut(8, 8, "full"), id="more-than-full"),
    ],
)
def test_window_waits_for_the_batch_or_the_delay(ready: int, now: int, expected: Cut | Hold) -> None:
    assert make("window").decide(KeyView(ready, 8, 8, oldest=100, max_delay=50), (8,), now) == expected


def test_window_waits_for_the_largest_batch_even_if_a_smaller_worker_is_idle() -> None:
    assert make("window").decide(KeyView(3, 2, 8, oldest=100, max_delay=50), (2,), 100) == Hold(150)


@pytest.mark.parametrize(
    ("idle", "ready", "expected"),
    [
        pytest.param((8,), 3, Cut(3, 8, "delay"), id="padded"),
        pytest.param((8,), 8, Cut(8, 8, "full"), id="full"),
        pytest.param((4, 2), 9, Cut(4, 4, "full"), id="small-worker"),
        pytest.param((16,), 3, Cut(3, 8, "delay"), id="never-beyond-full"),
    ],
)
def test_static_pads_to_one_size(idle: tuple[int, ...], ready: int, expected: Cut) -> None:
    view = KeyView(ready, min(8, idle[0]), 8, oldest=0, max_delay=50)
    assert make("static").decide(view, idle, 50) == expected


def test_static_waits_as_window_does() -> None:
    assert make("static").decide(KeyView(3, 8, 8, oldest=100, max_delay=50), (8,), 120) == Hold(150)
