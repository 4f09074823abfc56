"""The page of how long a real-time call waits behind best-effort work, by number of stages."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from loadtest.common.page import Data, Page, ms, table

Figures = Mapping[str, Any]

BEYOND_MS = 1.0  # allowed beyond the longest stage


def waits_ms(one: Figures) -> list[float]:
    return [wait / 1e3 for run in one["rounds"] for wait in run["waits_us"]]


def quantile_ms(one: Figures, share: float) -> float:
    return float(np.quantile(waits_ms(one), share))


def target_ms(one: Figures) -> float:
    """For 99 % of the waits: the median of the longest stage in the rounds that were measured, and a little more."""
    return float(median(run["longest_ns"] for run in one["rounds"]) / 1e6 + BEYOND_MS)


def missed(data: Data) -> list[str]:
    return [
        f"{stages} stage(s): 99 % of the waits are up to {quantile_ms(one, 0.99):.2f} ms, not {target_ms(one):.2f}"
        for stages, one in data["stages"].items()
        if quantile_ms(one, 0.99) > target_ms(one)
    ]


def fill(data: Data) -> Mapping[str, object]:
    def middle(one: Figures, name: str) -> float:
        return float(median(run[name] for run in one["rounds"]))

    def of_rounds(one: Figures) -> str:
        tails = [float(np.quantile(run["waits_us"], 0.99)) / 1e3 for run in one["rounds"]]
        return f"{ms(min(tails))} to {ms(max(tails))}"

    columns = {
        "stages": "{stages}",
        "longest stage, ms": lambda one: ms(target_ms(one) - BEYOND_MS),
        "its 99 %": lambda one: ms(middle(one, "longest_p99_ns") / 1e6),
        "wait: 50 %, ms": lambda one: ms(quantile_ms(one, 0.5)),
        "99 %": lambda one: ms(quantile_ms(one, 0.99)),
        "of a round": of_rounds,
        "target for 99 %": lambda one: ms(target_ms(one)),
        "alone, 99 %": lambda one: f"{one['alone_p99_ns'] / 1e6:.2f}",
        "real-time call: alone, ms": "{alone_ms:ms}",
        "beside best effort": lambda one: ms(middle(one, "mean_ms")),
        "best effort/s": lambda one: f"{middle(one, 'per_s'):.1f}",
        "stages begun while one waited": lambda one: (
            f"{sum(run['behind'] for run in one['rounds'])} of {len(waits_ms(one))} waits"
        ),
    }
    rows = ({"stages": stages, **one} for stages, one in data["stages"].items())
    return {"beyond_ms": BEYOND_MS, "waits": table(columns, rows)}


PAGE = Page("preemption", __file__, fill, missed)
