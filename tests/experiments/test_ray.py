"""One replica under Ray Serve against the server alone: figures and page. Ray itself is in tests/integrations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bench.stats import Repeat
from app.models.repository import Repository
from experiments.ray import ray_serve, ray_serve_page
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


def test_page(tmp_path: Path) -> None:
    def runs(scale: float) -> list[dict[str, Any]]:
        return [{"per_s": 100.0 / scale, "p50_ms": scale, "p99_ms": 3 * scale} for _ in range(3)]

    of_load = {way: runs(1 + number) for number, way in enumerate(ray_serve.WAYS)}
    data = {
        "facts": {"cores": "2"}, "ways": ray_serve.WAYS, "ray": "2.60.0", "rates": {"echo": 50.0},
        "settings": {"connections": 64, "max_batch": 32, "share": 0.5, "seconds": 6.0, "repeats": 3,
                     "optimized": True},
        "runs": {"echo": dict.fromkeys(("one", "many", "open"), of_load)},
    }  # fmt: skip
    assert ray_serve_page.write(data, tmp_path) == ["ray-serve.md"]
    text = (tmp_path / "ray-serve.md").read_text(encoding="utf-8")
    assert "| `echo` | `starling serve` | 100 (100 to 100) | 1.00 (1.00 to 1.00) | 3.00 (3.00 to 3.00) |  |" in text
    assert (
        "| `echo` | a replica of `starling_app` | 50 (50 to 50) | 2.00 (2.00 to 2.00) | 6.00 (6.00 to 6.00) | 0.5 |"
        in text
    )
    assert "`echo` 50/s" in text
    assert "Ray 2.60.0 (RAY_SERVE_THROUGHPUT_OPTIMIZED=1)" in text
