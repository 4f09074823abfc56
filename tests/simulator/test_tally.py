"""The report of a run: its figures, and whether a replayed record gives the same Steps."""

from __future__ import annotations

import json

import numpy as np
import pytest

from app.scheduler.estimates.profile import Profile
from planner.replay import Replayed, replay
from planner.simulated_device import SimulatedDevice
from planner.tally import Tally, summary

from .runs import MS, recorded

# Figures of a run: percentiles true to 0.05 %, and parts that add up.


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
        part.close(low, [SimulatedDevice(Profile((1,)))])
        parts.add(part)
    whole.close(4000, [SimulatedDevice(Profile((1,)))] * 5)
    assert summary(whole) == summary(parts)


def test_figures() -> None:
    tally = tally_of([2 * MS, 4 * MS, 6 * MS])
    tally.requests, tally.refused, tally.expired = 6, 1, 2
    tally.started(3)
    tally.started(1)
    device = SimulatedDevice(Profile((1,)))
    device.busy_ns = device.unit_ns = 6 * MS
    tally.close(10 * MS, [device, SimulatedDevice(Profile((1,)))])
    figures = summary(tally)
    assert figures["mean_ms"] == 4
    assert (figures["requests"], figures["completed"], figures["dropped"]) == (6, 3, 3)
    assert (figures["mean_batch"], figures["utilisation"]) == (2, 0.3)
    assert figures["throughput"] == figures["goodput"] == 300
    assert figures["busy_s_per_request"] == pytest.approx(0.002)


# Replay says whether the recorded Steps come out again, and where they do not.


def record() -> list[str]:
    return [json.dumps(entry) for entry in recorded()]


def test_equal() -> None:
    assert replay(record()) == Replayed(equal=6)
    assert replay(record()).same


def test_first_difference_is_named_with_its_line() -> None:
    lines = record()
    changed = json.loads(lines[7])
    changed["step"]["start"][0][1] = 3  # another worker
    lines[7] = json.dumps(changed)
    replayed = replay(lines)
    assert not replayed.same
    assert (replayed.equal, replayed.line, replayed.expected) == (2, 8, changed)
    assert replayed.got["step"]["start"][0][1] == 0


def test_missing_input_is_a_difference() -> None:
    lines = record()
    del lines[6]
    assert replay(lines).line == 7


def test_replay_ends_at_a_hole() -> None:
    lines = record()
    lines[6:9] = ['{"dropped": 3}']
    assert replay(lines) == Replayed(equal=2, hole=3)


@pytest.mark.parametrize(
    "first",
    ['{"format": 99}', '{"in": "tick", "t": 0}', "[]", "7", "not JSON"],
    ids=["format", "input", "list", "number", "text"],
)
def test_what_is_no_record(first: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        replay([first])
