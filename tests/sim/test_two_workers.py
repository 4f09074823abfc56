"""The optimum of two workers beside what `adaptive` does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiers import full

from app.scheduler.estimates.profile import linear
from app.sim.fleet import Setup, run
from app.sim.two_workers import compared, peak, solved

PROFILE = linear(7, 1, 6)
#: Two at once take 1.2 times, or 3 times as long.
SLOWED = {slow: replace(PROFILE, concurrency_ns={2: tuple(round(slow * t) for t in PROFILE.batch_ns)})
          for slow in (1.0, 1.2, 3.0)}  # fmt: skip


def test_peak_is_that_of_as_many_as_are_best() -> None:
    alone = 6 * 1e9 / PROFILE.batch_ns[5]
    assert [peak(SLOWED[slow]) / alone for slow in (1.0, 1.2, 3.0)] == pytest.approx([2, 2 / 1.2, 1])
    assert peak(PROFILE) == peak(SLOWED[1.0])


@full
@pytest.mark.parametrize(("slow", "load"), [(1.0, 0.3), (1.2, 0.8), (3.0, 0.3)])
def test_adaptive_is_near_the_optimum(slow: float, load: float) -> None:
    profile = SLOWED[slow]
    best, adaptive, no_wait, _ = compared(profile, load * peak(profile))
    assert adaptive is not None
    assert no_wait is not None
    assert best.mean_ns * 0.999 < adaptive < 1.01 * best.mean_ns
    assert no_wait > 1.01 * best.mean_ns


@full
def test_the_simulator_agrees() -> None:
    """`adaptive` on the scheduler itself, in one run whose standard error is about 1 %."""
    profile = SLOWED[1.2]
    rate = 0.6 * peak(profile)
    setup = Setup(profile, rate, requests=8_000, device="shared", workers=(6, 6), max_queue=1 << 30)
    assert run(setup)["mean_ms"] == pytest.approx(solved(profile, rate)[0].mean_ns / 1e6, rel=0.04)
