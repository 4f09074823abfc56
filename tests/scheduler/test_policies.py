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
                assert now < decision.until <= ends
                assert isinstance(policy_class(name)().decide(offer, decision.until), Cut)


@pytest.mark.parametrize(
    ("name", "ready", "idle", "now", "expected"),
    [
        pytest.param("no_wait", 1, (8,), 100, Cut(1, 1, "idle"), id="no_wait-one-row"),
        pytest.param("no_wait", 9, (8,), 100, Cut(8, 8, "full"), id="no_wait-more-than-fit"),
        pytest.param("no_wait", 9, (2,), 100, Cut(2, 2, "idle"), id="no_wait-only-a-small-worker"),
        pytest.param("window", 3, (8,), 149, Hold(150), id="window-young"),
        pytest.param("window", 3, (8,), 150, Cut(3, 3, "hold_ended"), id="window-due"),
        pytest.param("window", 8, (8,), 100, Cut(8, 8, "full"), id="window-full"),
        pytest.param("window", 30, (8,), 100, Cut(8, 8, "full"), id="window-more-than-full"),
        pytest.param("static", 3, (8,), 150, Cut(3, 8, "hold_ended"), id="static-padded"),
        pytest.param("static", 8, (8,), 150, Cut(8, 8, "full"), id="static-full"),
        pytest.param("static", 9, (4, 2), 150, Cut(4, 4, "full"), id="static-small-worker"),
        pytest.param("static", 3, (16,), 150, Cut(3, 8, "hold_ended"), id="static-never-beyond-full"),
    ],
)
def test_policies_that_look_at_nothing_but_the_queue(name, ready, idle, now, expected) -> None:
    """Batches of 8; the oldest row has come at 100 and may wait until 150."""
    offer = offer_of(ready, min(8, idle[0]), 8, idle, oldest_at=100, max_delay=50)
    assert policy_class(name)().decide(offer, now) == expected
