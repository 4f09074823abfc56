"""Devices: units end when they should, one at a time or slowed by one another."""

from __future__ import annotations

import numpy as np
import pytest
from tiers import full

from app.scheduler.estimates.profile import Profile
from app.scheduler.types import Row, Unit
from planner.profile_times import linear
from planner.simulated_device import SimulatedDevice, factors, slowdown

ALONE = (100, 120, 160)
PAIR = Profile(ALONE, concurrency_ns={2: (150, 180, 240), 4: (300, 480, 640)})


def unit(ident: int, worker: int = 0, size: int = 1) -> Unit:
    return Unit(ident, worker, 1, 0, [Row() for _ in range(size)], size, "idle", 0)


def ends(device: SimulatedDevice) -> list[tuple[int, int, int]]:
    """(time, unit, its nanoseconds) until nothing runs."""
    found = []
    while device.due is not None:
        now = device.due
        ended, ran = device.pop(now)
        found.append((now, ended.id, ran))
    return found


def test_serial_runs_one_at_a_time() -> None:
    device = SimulatedDevice(Profile(ALONE))
    assert device.due is None
    device.push(unit(1, worker=0, size=1), 10)
    device.push(unit(2, worker=1, size=3), 50)
    assert ends(device) == [(110, 1, 100), (270, 2, 160)]
    assert (device.busy_ns, device.unit_ns) == (260, 260)


def test_shared_slows_both() -> None:
    """The second joins half-way: 50 ns of work are left of the first, at 1.5 times the time; then it goes on alone."""
    device = SimulatedDevice(PAIR, 2)
    device.push(unit(1, worker=0), 0)
    device.push(unit(2, worker=1), 50)
    assert ends(device) == [(125, 1, 125), (175, 2, 125)]
    assert (device.busy_ns, device.unit_ns) == (175, 250)


def test_shared_worker_keeps_its_order() -> None:
    device = SimulatedDevice(PAIR, 2)
    device.push(unit(1, worker=0), 0)
    device.push(unit(2, worker=0), 0)
    assert ends(device) == [(100, 1, 100), (200, 2, 100)]


def test_slowdown_between_and_beyond_what_was_measured() -> None:
    assert slowdown(PAIR, 1) == (1, 1, 1)
    assert slowdown(PAIR, 2) == (1.5, 1.5, 1.5)
    assert slowdown(PAIR, 3) == pytest.approx((2.25, 2.75, 2.75))
    assert slowdown(PAIR, 8) == pytest.approx((6, 8, 8))


def test_shared_needs_a_table() -> None:
    SimulatedDevice(linear(1, 1, 4), 1)
    with pytest.raises(ValueError, match="concurrency"):
        SimulatedDevice(linear(1, 1, 4), 2)


@full
@pytest.mark.parametrize(("service", "cv"), [("exponential", 1), ("gamma:0.3", 0.3), ("gamma:2", 2)])
def test_factors(service: str, cv: float) -> None:
    draw, again = factors(service, [1, 2]), factors(service, [1, 2])
    assert draw is not None is not again
    values = np.array([draw() for _ in range(40_000)])
    assert values.mean() == pytest.approx(1, abs=0.03)
    assert values.std() == pytest.approx(cv, rel=0.05)
    assert values[:2000].tolist() == [again() for _ in range(2000)]


@pytest.mark.parametrize("service", ["", "normal", "gamma", "gamma:x", "gamma:-1", "gamma:nan", "deterministic:1"])
def test_service_that_is_not_understood(service: str) -> None:
    with pytest.raises(ValueError, match="service: expected"):
        factors(service, [0])
