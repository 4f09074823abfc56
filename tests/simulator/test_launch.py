"""Launch cost, hand-over and push depth: when a unit starts that was handed to an idle worker, or behind another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiers import full

from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse
from app.scheduler.optimal.tables import solve
from app.scheduler.types import AT_ONCE
from planner.fleet import Setup

from .runs import MS, latencies, simulated

#: Batches take 10, 12, 14 ms.
PROFILE = parse({"batch_ms": {"1": 10, "3": 14}})
DEEP = {"push_depth": 2, "push_ahead_ns": AT_ONCE}


def test_a_unit_behind_another_runs_when_that_one_has_ended() -> None:
    """The second unit is formed at 1 from one row; the third row finds the worker full until 10."""
    assert latencies(PROFILE, [0, 1, 2], **DEEP) == ([10, 19, 28], 30, 30)


def test_a_unit_pushed_shortly_before_the_end_has_all_rows_that_came() -> None:
    """At 7 the first unit is predicted to end within 3: both rows that wait are handed over and start at 10."""
    ahead = DEEP | {"push_ahead_ns": 3 * MS}
    assert latencies(PROFILE, [0, 1, 2, 8], **ahead) == ([10, 21, 20, 24], 32, 32)


def test_units_of_one_worker_run_in_the_order_they_were_handed_over() -> None:
    """Depth 4: all four stand in the queue of the one worker from the start, a row each."""
    assert latencies(PROFILE, [0, 1, 2, 3], **DEEP | {"push_depth": 4}) == ([10, 19, 28, 37], 40, 40)


def test_an_idle_worker_waits_for_the_launch() -> None:
    """Each unit is handed over when the one before it has ended: 2 + 10, then 2 + 12. The launch is no work."""
    assert latencies(PROFILE, [0, 1, 2], launch_ns=2 * MS) == ([12, 25, 24], 22, 26)


def test_the_launch_of_a_unit_behind_another_costs_nothing() -> None:
    """The second unit is launched from 1 to 3, while the first runs from 2 to 12; the third from 12 to 14."""
    assert latencies(PROFILE, [0, 1, 2], **DEEP, launch_ns=2 * MS) == ([12, 21, 30], 30, 32)


def test_a_launch_may_take_longer_than_the_unit_before() -> None:
    """Launched by 30, 35 and 70. The third is handed over at 40, when the first has ended."""
    profile = Profile((10 * MS,))
    assert latencies(profile, [0, 5, 20], **DEEP, launch_ns=30 * MS) == ([40, 45, 60], 30, 80)
    assert latencies(profile, [0, 25], **DEEP, launch_ns=30 * MS) == ([40, 40], 20, 65)


class TestHandover:
    """Two milliseconds beside 10, 12 and 14 ms of computing."""

    HANDED = replace(PROFILE, handover_ns=2 * MS)

    def test_the_scheduler_expects_it_from_the_first_unit_on_and_learns_nothing_else(self) -> None:
        """A deadline of 12 ms can be met, one of 11.9 cannot, also after 200 units."""
        for deadline_ms, answered in ((12, 201), (11.9, 0)):
            setup = Setup(self.HANDED, 1, policy="no_wait", deadline_ns=round(deadline_ms * MS))
            tally = simulated(setup, node := setup.node(0), range(0, 201 * 20 * MS, 20 * MS))
            assert (tally.completed, tally.completed + tally.refused) == (answered, 201)
            learnt = node.scheduler.states[1].estimates.latency[0]
            assert (learnt.handover.ns, learnt.speed.scale) == (2 * MS, 1.0)

    @full
    @pytest.mark.parametrize(("device", "left_ms"), [({}, 2), ({"push_depth": 2, "push_ahead_ns": MS}, 1)])
    def test_tables_are_solved_with_it(self, device: dict[str, int], left_ms: int) -> None:
        tables = Setup(self.HANDED, 50, **device).solved().tables
        assert tables == solve(replace(PROFILE, handover_ns=left_ms * MS))
