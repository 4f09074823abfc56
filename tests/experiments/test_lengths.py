"""Rows picked by length: the yardsticks' arithmetic, a small closed loop, and pages that say what is missed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from experiments.policies import lengths, lengths_page
from experiments.policies.lengths import Device, linear
from experiments.stages import glue, glue_page

DEVICE = Device("d", linear(2, 1), "uniform:1:4", (2,))
MS = 1_000_000


def test_the_optimum_of_three_rows_is_that_of_all_orders() -> None:
    """1 and 1 together take 4 ms, 100 after them 102; all together 302, one after another 3, 6 and 108."""
    assert lengths.optimum([1, 100, 1], DEVICE.profile) == pytest.approx((4 + 4 + 106) / 3 * MS)
    assert lengths.optimum([5], DEVICE.profile) == pytest.approx(7 * MS)


def test_rows_that_all_wait_are_served_by_length_as_the_optimum_does() -> None:
    by_length = lengths.ways(DEVICE)["by length"].solved()
    assert lengths.drained(by_length, [1, 100, 1]) == pytest.approx(lengths.optimum([1, 100, 1], DEVICE.profile))


def test_by_length_a_closed_loop_serves_more_than_by_count() -> None:
    ways = lengths.ways(Device("d", linear(4, 0.15), lengths.GLUE, (16,)))
    assert lengths.closed(ways["by length"], 300) > 1.5 * lengths.closed(ways["by count"], 300)


def test_windows_of_one_row_take_what_rows_take() -> None:
    one = lengths.best_windows(Device("d", linear(2, 1), "fixed:3", ()), 10)["1"]
    assert one == pytest.approx(1000 / 5)


def test_the_page_tells_what_is_missed(tmp_path: Path) -> None:
    def cell(mean: float, p99: float) -> dict[str, float]:
        return {"mean_ms": mean, "p99_ms": p99}

    found = {
        "device": "encoder", "lengths": "fixed:1", "peak": 100.0, "closed": {"by count": 100.0, "by length": 170.0},
        "loads": {
            "0.9": {"by count": cell(10, 20), "by length": cell(6, 21)},
            "1.2": {"by count": None, "by length": cell(9, 9)},
        },
    }  # fmt: skip
    data = {
        "studies": [found], "facts": {"cores": "2"},
        "settings": {"requests": 10, "seeds": 1, "clients": 64, "loads": [0.9], "cases": 1},
    }  # fmt: skip
    assert lengths_page.missed(data) == [
        "encoder, closed loop: 1.70 x", "encoder, load 0.9: mean 0.600 x, 99 % 1.050 x, not lower",
        "encoder, load 0.9: mean 0.60 x, not 0.5 x",
    ]  # fmt: skip
    assert lengths_page.write(data, tmp_path) == ["lengths.md"]
    assert "| 1.2 | - | 9.00 / 9.00 |  |" in (tmp_path / "lengths.md").read_text()


def test_requests_have_the_lengths_of_the_data_set() -> None:
    bodies = glue.requests(0)
    counted = Counter(body["inputs"][0]["shape"][1] for body in bodies)
    assert min(counted) >= 4
    assert max(counted) <= 128
    assert all(len(one["data"]) == one["shape"][1] for body in bodies for one in body["inputs"])
    assert json.dumps(bodies) == json.dumps(glue.requests(0))


def test_the_served_page_tells_what_is_missed() -> None:
    def cell(rate: float, mean: float, p99: float) -> dict[str, object]:
        return {"rows_per_s": [rate], "mean_ms": [mean], "p99_ms": p99, "batch": 2.0, "errors": 0}

    data = {
        "peak": 100.0, "closed": {"by length": cell(190, 1, 1)},
        "loads": {"0.9": {"by length": cell(90, 6, 9), "by count": cell(90, 10, 20)}},
    }  # fmt: skip
    assert glue_page.missed(data) == ["load 0.9: mean 0.60 x, not 0.5 x"]
