"""Runs made by hand, for what is computed from them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Result
from loadtest.generator.stats import Repeat

MS = 1_000_000


def repeat(latencies_ms: list[float], **more: Any) -> Repeat:
    """One request every 10 ms with these latencies; below 0 is an error."""
    count = len(latencies_ms)
    latency = np.array([round(value * MS) if value >= 0 else -1 for value in latencies_ms], np.int64)
    wrong = int((latency < 0).sum())
    values: dict[str, Any] = {
        "seed": 0, "duration_s": count / 100, "elapsed_s": count / 100,
        "intended_ns": np.arange(count) * 10 * MS, "latency_ns": latency, "wait_ns": np.zeros(count, np.int64),
        "lag_ns": np.full(count, MS // 100), "compute_ns": np.full(count, -1), "server_ns": np.full(count, -1),
        "queue_ns": np.full(count, -1),
        "batch": np.zeros(count, np.int64), "status": +Counter({200: count - wrong, 503: wrong}),
        "errors": +Counter({"status 503": wrong}),
        "examples": {"status 503": "status 503: full"} if wrong else {}, "unchecked": 0,
    }  # fmt: skip
    return Repeat(**{**values, **more})


def result(*repeats: Repeat, **options: Any) -> Result:
    plan = BenchPlan(**{"url": "localhost:1", "model": "m", "rate": 100.0, "repeats": len(repeats), **options})
    return Result(plan, repeats, 3)
