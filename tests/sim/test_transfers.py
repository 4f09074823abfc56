"""Copies: hand-computed latencies where they are part of a unit, beside it, and what limits the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiers import few

from app.scheduler.estimates.profile import linear, parse
from app.sim.fleet import Setup, run
from app.sim.transfers import TRANSFERS, CopyEngine

from .runs import MS, latencies

#: Batches take 10, 12, 14 ms and their copies 3, 4, 5 ms.
PROFILE = parse({"batch_ms": {"1": 10, "3": 14}, "transfer_ms": {"1": 3, "3": 5}})
PAIR = parse(
    {
        "batch_ms": {"1": 10},
        "concurrency": {"2": {"1": 20}},
        "transfer_ms": {"1": 5},
    }
)


def test_none_leaves_copies_out() -> None:
    assert latencies(PROFILE, [0, 1, 2]) == ([10, 21, 20], 22, 22)


def test_serial_adds_the_copy_to_the_unit() -> None:
    """One row: 10 + 3; the two that came meanwhile, as a batch: 12 + 4. The device is taken all the time."""
    assert latencies(PROFILE, [0, 1, 2], transfers="serial") == ([13, 28, 27], 29, 29)


def test_overlap_copies_behind_a_running_unit() -> None:
    """Copied at 3, 6 and 9: the first unit computes from 3 to 13, the batch of two at once after it."""
    assert latencies(PROFILE, [0, 1, 2], transfers="overlap") == ([13, 24, 23], 22, 25)


def test_overlap_waits_for_the_last_row_of_the_unit() -> None:
    """At 13 the device is free. The row of 11 is copied at 14; those of 10 and 12 at 13 and 16. To wait is no work."""
    assert latencies(PROFILE, [0, 11], transfers="overlap") == ([13, 13], 20, 24)
    assert latencies(PROFILE, [0, 10, 12], transfers="overlap") == ([13, 18, 16], 22, 28)


def test_a_lone_row_takes_as_long_either_way() -> None:
    assert latencies(PROFILE, [5], transfers="overlap")[0] == latencies(PROFILE, [5], transfers="serial")[0] == [13]


def test_the_copy_engine_can_be_the_limit() -> None:
    slow = parse({"batch_ms": {"1": 10}, "transfer_ms": {"1": 20}})
    assert latencies(slow, [0, 0, 0], transfers="overlap") == ([30, 50, 70], 30, 70)


def test_serial_units_that_run_at_once_slow_their_copies_too() -> None:
    """15 of work each at half speed; the second to end is planned anew when the first has, 1 ns later."""
    found, busy, _ = latencies(PAIR, [0, 0], transfers="serial", device="shared", workers=(1, 1))
    assert found == pytest.approx([30, 30], abs=1e-5)
    assert busy == pytest.approx(30, abs=1e-5)


def test_what_is_dropped_while_it_waits_for_its_copy() -> None:
    """Its unit runs unheard, as one that had begun."""
    cell = run(Setup(parse({"batch_ms": {"1": 10}, "transfer_ms": {"1": 20}}), 1000, policy="no_wait",
                     arrivals="uniform", requests=2, transfers="overlap", deadline_ns=25 * MS))  # fmt: skip
    assert (cell["completed"], cell["dropped"]) == (0, 2)


def test_order_of_the_three_under_load() -> None:
    setup = Setup(PROFILE, 0.6 * PROFILE.peak, policy="no_wait", requests=few(3000))
    none, overlap, serial = (run(replace(setup, transfers=transfers))["mean_ms"] for transfers in TRANSFERS)
    assert none < overlap < serial


def test_copy_engine() -> None:
    engine = CopyEngine(3)
    assert [engine.arrive(now) for now in (0, 1, 20)] == [3, 6, 23]


def test_a_profile_without_copy_times() -> None:
    profile = linear(1, 1, 3)
    for transfers in ("overlap", "serial"):
        with pytest.raises(ValueError, match="transfer_ms: the profile has no copy times"):
            Setup(profile, 1, transfers=transfers).check()
    Setup(profile, 1, transfers="none").check()
