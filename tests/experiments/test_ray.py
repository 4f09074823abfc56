"""One replica under Ray Serve against the server alone: figures. Ray itself is in tests/integrations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from app.bench.stats import Repeat
from app.models.repository import Repository
from experiments.ray import ray_serve
from loadtest.common.servers import MeasurementError

MS = 1_000_000


def repeat(latencies_ms: list[float], *, examples: dict[str, str] | None = None) -> Repeat:
    """A run of one second, with a request every 100 ms."""
    count = len(latencies_ms)
    latency = np.array([round(ms * MS) for ms in latencies_ms], np.int64)
    column = np.zeros(count, np.int64)
    return Repeat(
        seed=0, duration_s=1.0, elapsed_s=1.0, intended_ns=np.arange(count) * 100 * MS, latency_ns=latency,
        wait_ns=column, lag_ns=column, compute_ns=column, server_ns=column, queue_ns=column, batch=column,
        status=Counter(), errors=Counter(), examples=examples or {}, unchecked=0,
    )  # fmt: skip


def test_answers_that_come_after_the_load_do_not_count() -> None:
    found = ray_serve.figures_of(repeat([10.0] * 9 + [500.0]))
    assert found == {"per_s": 9.0, "p50_ms": 10.0, "p99_ms": 500.0}


def test_a_wrong_answer_is_no_figure() -> None:
    with pytest.raises(MeasurementError, match="status 500"):
        ray_serve.figures_of(repeat([1.0], examples={"status 500": "status 500: no"}))


def test_both_models_are_found_and_the_quick_one_is_small(tmp_path: Path) -> None:
    found = ray_serve.folders(tmp_path, quick=True)
    assert list(found) == list(ray_serve.MODELS)
    named = [f"{name}={path}" for name, path in found.items()]
    assert Repository(None, named).names() == sorted(found)
    assert "hidden = 64" in (found["mlp"] / "model.toml").read_text(encoding="utf-8")
