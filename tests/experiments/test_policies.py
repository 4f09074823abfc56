"""Policies compared: distances to the optimum, starts, noisy profiles, and rows picked by length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.scheduler.estimates.profile import linear
from experiments.common.simulated import Policy, Server, stepped
from experiments.policies import lengths, simulated, start
from experiments.policies.lengths import Device
from experiments.policies.noisy_profiles import Cell, simulate

# The table of distances to the optimum: its estimator, and the page from a tiny run.


PROFILE = linear(0.2, 3, 8)


def test_the_optimal_policy_run_is_as_good_as_solved() -> None:
    """The control variate's expectation is the exact value, also where the optimum holds rows for company."""
    profile = linear(7, 0.6, 32)
    rate = 0.3 * profile.peak
    best, tables = simulated.best_tables(profile, rate)
    server = Server(Policy("adaptive"), profile, (32,), tables=tables)
    found = simulated.simulate(server, stepped([(20_000, rate)], 1))
    assert found["mean_ms"] == pytest.approx(best.mean_ns / 1e6, rel=0.02)
    assert 0 in best.table[1:]  # it waits


def test_the_page_of_distances_is_made_of_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "LOADS", (0.3,))
    monkeypatch.setattr(simulated, "devices", lambda folder: {"made up": PROFILE, "other": linear(7, 0.6, 8)})
    monkeypatch.setattr(simulated, "_LEAST_S", 0)
    arguments = ["--seeds", "1", "--requests", "120", "--out", str(tmp_path)]
    assert simulated.EXPERIMENT.main(arguments) in (0, 1)  # so few requests may miss a target
    assert len(json.loads((tmp_path / "policies.json").read_text())["cells"]) == 2 * len(simulated.CONTENDERS)
    assert (tmp_path / "policies.png").read_bytes()[:4] == b"\x89PNG"


# The page of `adaptive` against `no_wait` after a start: what is met, missed and undecided.


def a_cell(adaptive_ms: list[float], no_wait_ms: list[float]) -> dict[str, Any]:
    cell = {"model": "mlp", "start": "quiet", "share": 0.6, "peak": 910.0}
    ratio = start.ratio_of(adaptive_ms, no_wait_ms)
    return {**cell, "adaptive_ms": adaptive_ms, "no_wait_ms": no_wait_ms, "ratio": ratio}


@pytest.mark.parametrize(
    ("adaptive_ms", "verdict", "missed"),
    [([9.0] * 6, "met", 0), ([12.0] * 6, "**missed**", 1), ([9.0, 14.0, 10.2] * 2, "undecided", 0)],
)
def test_verdicts(adaptive_ms: list[float], verdict: str, missed: int) -> None:
    data = {
        "settings": {"rounds": 6, "seconds": 5.0, "idle": 9.0},
        "cells": [a_cell(adaptive_ms, [10.0] * 6)],
    }
    (row,) = [line for line in start.PAGE.text(data).splitlines() if line.startswith("| mlp")]
    assert row.startswith("| mlp | quiet | 60% of 910/s |")
    assert row.endswith(f"| {verdict} |")
    assert len(start.missed(data)) == missed


# Profiles that are known only with noise.


def test_no_profile_of_either_kind_is_worse_than_no_wait() -> None:
    for found in simulate(Cell("line", linear(7, 0.6, 16), 0.5, 0.3, 0, 8.0)):
        assert found["adaptive"]["all"] <= 1.01 * found["no_wait"]["all"]


# Rows picked by length: the yardsticks' arithmetic, and a small closed loop.


DEVICE = Device("d", lengths.linear(2, 1), "uniform:1:4", (2,))
MS = 1_000_000


def test_the_optimum_of_three_rows_is_that_of_all_orders() -> None:
    """1 and 1 together take 4 ms, 100 after them 102; all together 302, one after another 3, 6 and 108."""
    assert lengths.optimum([1, 100, 1], DEVICE.profile) == pytest.approx((4 + 4 + 106) / 3 * MS)
    assert lengths.optimum([5], DEVICE.profile) == pytest.approx(7 * MS)


def test_by_length_a_closed_loop_serves_more_than_by_count() -> None:
    ways = lengths.ways(Device("d", lengths.linear(4, 0.15), lengths.GLUE, (16,)))
    assert lengths.closed(ways["by length"], 300) > 1.5 * lengths.closed(ways["by count"], 300)
