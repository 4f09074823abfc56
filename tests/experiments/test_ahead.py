"""Handing units over ahead of time: all ways meet the same arrivals, and what is better is told as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.stages import ahead, ahead_page


def test_a_unit_pushed_within_the_time_is_near_the_better_way() -> None:
    """On a curve with a large fixed part early units are costly; the launch is hidden all the same."""
    found = ahead.cell(("7 + 0.6 b", 0.6, 1, 4000))
    (depth_1,), (at_once,), (within,) = found["depth_1"], found["at_once"], found["ahead"]
    assert at_once > 1.3 * depth_1
    assert within < depth_1  # by less than the launch of each unit
    assert within > depth_1 - 2 * ahead.LAUNCH_NS / 1e6


def test_a_way_that_is_too_far_behind_is_missed(tmp_path: Path) -> None:
    cell = {
        "curve": "c", "load": 0.3, "rate": 10.0, "depth_1": [10.0, 10.0], "at_once": [5.0, 25.0],
        "ahead": [10.2, 10.6],
    }  # fmt: skip
    assert ahead_page.above(cell) == pytest.approx([0.02, 0.06])  # against depth 1, whose mean is the better one
    assert ahead_page.missed({"cells": [cell]}) == ["c, load 0.3: +4.0%"]
    assert ahead_page.missed({"cells": [{**cell, "ahead": [10.0, 10.0]}]}) == []
    data = {"facts": {"cores": "2"}, "settings": {"launch_ms": 0.3, "ahead_ms": 0.3, "seeds": 2, "requests": 9}}
    assert ahead_page.write({**data, "cells": [cell]}, tmp_path) == ["ahead.md"]
    assert "| c | 0.3 | 10.0 | 10.0 | 15.0 | 10.4 | +4.0% ± 2.0 | NO |" in (tmp_path / "ahead.md").read_text()
