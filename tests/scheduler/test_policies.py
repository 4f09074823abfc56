"""What every policy owes the scheduler, then the cases of those that look at nothing but the queue."""

from __future__ import annotations

from itertools import product

import pytest
from tiers import some

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import POLICIES, Cut, Hold, policy_class

from .views import estimates_of, offer_of

#: Rows 3 are run as 4, and nothing is in the table beyond 8.
TABLES = ControlTables((0.5,), ((0, 1, 2, 3, 4, 4, 6, 7, 8),), 8, (1, 2, 4, 4, 5, 6, 7, 8), 100.0)
OF_WINDOW = {"window", "static", "dva_operator", "dva_load"}  # a batch is full if as many as that wait
KNOWN = [{}, {"preferred": 4}, {"control": TABLES}, {"control": TABLES, "level": 0}]
IDLE = [(1,), (4,), (8, 2), (8, 8, 1)]
OFFERS = [
    (
        offer_of(ready, min(idle[0], full), full, idle, estimates_of(**known), oldest_at=oldest, max_delay=delay),
        oldest + delay,
        now,
    )
    for idle, ready, full, oldest, delay, now, known in some(
        product(IDLE, (1, 3, 8, 40), (1, 4, 8), (0, 90), (0, 50), (100, 1_000), KNOWN), 7
    )
]


@pytest.mark.parametrize("name", POLICIES)
class TestEveryPolicy:
    def test_cut_can_be_run(self, name: str) -> None:
        """At least one row, no more than wait or than may run, at a size that an idle worker takes."""
        for offer, _, now in OFFERS:
            decision = policy_class(name)().decide(offer, now)
            if isinstance(decision, Cut):
                assert 1 <= decision.rows <= min(offer.ready.count, decision.size)
                assert decision.rows <= offer.rows or name == "ebird"  # which asks the workers, not the key
                assert decision.size <= offer.capacities()[0]
                assert decision.reason in {"full", "idle", "table", "hold_ended"}
                assert (decision.reason == "full") == (decision.rows == offer.full) or name in OF_WINDOW

    def test_hold_ends(self, name: str) -> None:
        """A key is held until a time to come, and not beyond what its oldest row may wait; then something starts."""
        for offer, ends, now in OFFERS:
            decision = policy_class(name)().decide(offer, now)
            if isinstance(decision, Hold) and name == "ebird":  # until a smaller worker returns
                assert decision == Hold(None)
                assert offer.ready.count < min(offer.capacities())
            elif isinstance(decision, Hold):
                assert decision.until is not None
                assert now < decision.until <= ends
                assert isinstance(policy_class(name)().decide(offer, decision.until), Cut)


@pytest.mark.parametrize(
    ("ready", "limit", "expected"),
    [
        pytest.param(1, 8, Cut(1, 1, "idle"), id="one-row"),
        pytest.param(9, 8, Cut(8, 8, "full"), id="more-than-fit"),
        pytest.param(9, 2, Cut(2, 2, "idle"), id="only-a-small-worker"),
    ],
)
def test_no_wait_takes_what_is_there(ready: int, limit: int, expected: Cut) -> None:
    assert policy_class("no_wait")().decide(offer_of(ready, limit, 8, (limit,), max_delay=10**9), 0) == expected


@pytest.mark.parametrize(
    ("ready", "now", "expected"),
    [
        pytest.param(3, 149, Hold(150), id="young"),
        pytest.param(3, 150, Cut(3, 3, "hold_ended"), id="due"),
        pytest.param(8, 100, Cut(8, 8, "full"), id="full"),
        pytest.param(30, 100, Cut(8, 8, "full"), id="more-than-full"),
    ],
)
def test_window_waits_for_the_batch_or_the_delay(ready: int, now: int, expected: Cut | Hold) -> None:
    assert policy_class("window")().decide(offer_of(ready, 8, 8, oldest_at=100, max_delay=50), now) == expected


@pytest.mark.parametrize(
    ("idle", "ready", "expected"),
    [
        pytest.param((8,), 3, Cut(3, 8, "hold_ended"), id="padded"),
        pytest.param((8,), 8, Cut(8, 8, "full"), id="full"),
        pytest.param((4, 2), 9, Cut(4, 4, "full"), id="small-worker"),
        pytest.param((16,), 3, Cut(3, 8, "hold_ended"), id="never-beyond-full"),
    ],
)
def test_static_pads_to_one_size(idle: tuple[int, ...], ready: int, expected: Cut) -> None:
    offer = offer_of(ready, min(8, idle[0]), 8, idle, max_delay=50)
    assert policy_class("static")().decide(offer, 50) == expected
