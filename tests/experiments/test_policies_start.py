"""The page of `adaptive` against `no_wait` after a start: what is met, missed, and what the rounds do not tell."""

from pathlib import Path
from typing import Any

import pytest

from experiments.policies import start, start_page


def a_cell(adaptive_ms: list[float], no_wait_ms: list[float]) -> dict[str, Any]:
    cell = {"model": "mlp", "start": "quiet", "share": 0.6, "peak": 910.0}
    ratio = start.ratio_of(adaptive_ms, no_wait_ms)
    return {**cell, "adaptive_ms": adaptive_ms, "no_wait_ms": no_wait_ms, "ratio": ratio}


@pytest.mark.parametrize(
    ("adaptive_ms", "verdict"),
    [([9.0, 9.1, 9.0], "met"), ([12.0, 12.1, 12.0], "**missed**"), ([9.0, 14.0, 10.0], "not told")],
)
def test_verdicts(tmp_path: Path, adaptive_ms: list[float], verdict: str) -> None:
    cell = a_cell(adaptive_ms, [10.0, 10.0, 10.0])
    settings = {"rounds": 3, "seconds": 5.0, "idle": 9.0}
    start_page.write({"settings": settings, "cells": [cell], "facts": {}}, tmp_path)
    (row,) = [line for line in (tmp_path / "policies-start.md").read_text().splitlines() if line.startswith("| mlp")]
    assert row.startswith("| mlp | quiet | 60% of 910/s |")
    assert row.endswith(f"| {verdict} |")


def test_the_ratio_is_the_geometric_mean() -> None:
    low, ratio, high = start.ratio_of([5.0, 20.0], [10.0, 10.0])
    assert ratio == pytest.approx(1.0)
    assert low < 1 < high


def test_what_is_missed_ends_the_command_with_an_error() -> None:
    cells = [a_cell([12.0, 12.1], [10.0, 10.0]), a_cell([9.0, 9.0], [10.0, 10.0])]
    (line,) = start.missed({"cells": cells})
    assert "1.205" in line
