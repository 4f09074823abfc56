"""Figures of a run: percentiles true to 0.05 %, and parts that add up."""

from __future__ import annotations

import numpy as np
import pytest

from app.scheduler.estimates.profile import ModelProfile, Power
from app.sim.device import Device
from app.sim.report import Tally, summary

MS = 1_000_000


def tally_of(values: list[int]) -> Tally:
    tally = Tally(requests=len(values))
    tally.latencies += values
    tally.fold()
    return tally


@pytest.mark.parametrize("scale", [30, 5_000_000, 10**12])
def test_percentiles(scale: int) -> None:
    values = np.sort(np.random.default_rng(0).exponential(scale, 20_000).astype(np.int64) + scale // 10)
    tally = tally_of(values.tolist())
    for share in (0.001, 0.5, 0.9, 0.99, 0.999, 1):
        exact = values[max(0, int(np.ceil(share * len(values))) - 1)]
        assert tally.percentile(share) == pytest.approx(exact, rel=0.001, abs=1)


def test_parts_add_up() -> None:
    values = [int(value) for value in np.random.default_rng(1).integers(0, 10**9, 5000)]
    whole, parts = tally_of(values), Tally()
    for low in range(0, 5000, 1000):
        part = tally_of(values[low : low + 1000])
        part.close(low, [Device(ModelProfile((1,)))])
        parts.add(part)
    whole.close(4000, [Device(ModelProfile((1,)))] * 5)
    assert summary(whole) == summary(parts)


def test_figures() -> None:
    tally = tally_of([2 * MS, 4 * MS, 6 * MS])
    tally.requests, tally.refused, tally.expired = 6, 1, 2
    tally.started(3)
    tally.started(1)
    device = Device(ModelProfile((1,)))
    device.busy_ns = device.unit_ns = 6 * MS
    tally.close(10 * MS, [device, Device(ModelProfile((1,)))])
    figures = summary(tally, Power(10, 60))
    assert figures["mean_ms"] == 4
    assert (figures["requests"], figures["completed"], figures["dropped"]) == (6, 3, 3)
    assert (figures["mean_batch"], figures["utilisation"]) == (2, 0.3)
    assert figures["throughput"] == figures["goodput"] == 300
    assert figures["busy_s_per_request"] == pytest.approx(0.002)
    assert figures["energy_j_per_request"] == pytest.approx((0.014 * 10 + 0.006 * 60) / 3)
