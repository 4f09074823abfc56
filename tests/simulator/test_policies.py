"""Simulated policies, held against published figures and against the optimum of two workers."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tiers import few, full

from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.smooth import ONCE, Estimate, drawn
from app.scheduler.optimal.tables import solve
from planner.fleet import Setup, run
from planner.profile_times import linear
from planner.two_worker_optimum import compared, peak, solved

# The preset `preferred` in the simulator, against figures of an independent event simulation of Khan et al.
# T = 3 + 0.35 b ms, batches up to 32, Poisson arrivals, one serial device; mean and p99 in milliseconds, device time
# per request in milliseconds. Literal: no bound on the wait but one so far off that it ends the last, lone request
# only.


KHAN = linear(3, 0.35, 32)
REQUESTS = {5: 3_000, 60: 3_000, 240: 8_000, 600: 20_000}


@cache
def simulated(policy: str, rate: int) -> dict[str, Any]:
    bound = 40_000_000_000 // rate  # 40 mean gaps
    return run(Setup(KHAN, rate, policy, REQUESTS[rate], max_delay_ns=bound, max_queue=1 << 20))


@full
@pytest.mark.parametrize(("rate", "mean_ms", "p99_ms"), [(5, 104.6, 814), (240, 6.4, 21.8)], ids=["5", "240"])
def test_literal(rate: int, mean_ms: float, p99_ms: float) -> None:
    found = simulated("preferred", rate)
    assert found["completed"] == REQUESTS[rate]
    assert found["p99_ms"] == pytest.approx(p99_ms, rel=0.15)
    assert found["mean_ms"] == pytest.approx(mean_ms, rel=0.06)


@full
@pytest.mark.parametrize(("policy", "busy_ms"), [("preferred", 1.85), ("no_wait", 3.29)])
def test_what_waiting_buys_is_device_time(policy: str, busy_ms: float) -> None:
    """At 60 a second two rows share the 3 ms that every batch costs; the first second's go one by one."""
    assert 1e3 * simulated(policy, 60)["busy_s_per_request"] == pytest.approx(busy_ms, rel=0.02)


# What a warm-up that was disturbed does to one worker. Several have no tables before they have been measured
# (tests/engine/profiling/test_tables.py).


#: A curve with a peak at 3 rows, milliseconds.
TRUE = Profile(tuple(round(1e6 * ms) for ms in (4.0, 4.4, 6.9, 5.2, 5.6, 6.0, 6.4, 6.9, 7.4, 7.8, 8.2, 8.7)))
RATE = 0.85 * TRUE.peak


def disturbed(kind: str, seed: int) -> Profile:
    """A warm-up's profile: each size ran once; all of them beside other models, or two sizes at a bad moment."""
    draw = random.Random(seed)
    noise = {"quiet": 0.02, "loud": 0.3, "spiked": 0.05}[kind]
    slow = draw.sample(range(12), 2) if kind == "spiked" else ()
    times = [ns * (draw.uniform(3, 8) if at in slow else 1) * (1 + noise * draw.expovariate(1))
             for at, ns in enumerate(TRUE.batch_ns)]  # fmt: skip
    found = drawn({size: Estimate(ns, ONCE) for size, ns in enumerate(times, 1)})
    return Profile(tuple(round(found[size]) for size in range(1, 13)), errors=(ONCE,) * 12)


@pytest.mark.parametrize("kind", ["quiet", "loud", "spiked"])
def test_tables_of_a_disturbed_warm_up_cost_no_more_than_serving_all_that_waits(kind: str) -> None:
    plain = run(Setup(TRUE, RATE, "no_wait", 3_000, max_queue=256))
    for seed in range(few(8)):
        tables = solve(disturbed(kind, seed), loads=(0.3, 0.85))
        ours = run(Setup(TRUE, RATE, "adaptive", 3_000, max_queue=256, tables=tables))
        assert ours["mean_ms"] <= 1.03 * plain["mean_ms"]
        assert ours["dropped"] <= plain["dropped"]


# The optimum of two workers beside what `adaptive` does.


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
    assert best.mean_ns * 0.999 < adaptive < 1.01 * best.mean_ns
    assert no_wait > 1.01 * best.mean_ns


@full
def test_the_simulator_agrees() -> None:
    """`adaptive` on the scheduler itself, in one run whose standard error is about 1 %."""
    profile = SLOWED[1.2]
    rate = 0.6 * peak(profile)
    setup = Setup(profile, rate, requests=8_000, device="shared", workers=(6, 6), max_queue=1 << 30)
    assert run(setup)["mean_ms"] == pytest.approx(solved(profile, rate)[0].mean_ns / 1e6, rel=0.04)
