"""The page of `adaptive` against `no_wait` after a start: what is met, missed and undecided."""

from typing import Any

import pytest

from experiments.policies import start


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
