"""Policies are compared seed by seed, so that what a whole seed has in common does not count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from app.bench.stats import Repeat
from loadtest.bench.policies_live import compare, verdict

MS = 1_000_000


def repeat(seed: int, *latencies_ms: float, batch: int = 1, errors: int = 0) -> Repeat:
    latency = np.array([round(ms * MS) for ms in latencies_ms], np.int64)
    zeros = np.zeros(len(latency), np.int64)
    return Repeat(
        seed=seed, duration_s=1, elapsed_s=1, intended_ns=zeros, latency_ns=latency, wait_ns=zeros, lag_ns=zeros,
        compute_ns=zeros, server_ns=zeros, queue_ns=zeros, batch=zeros + batch, status=Counter(),
        errors=Counter({"timeout": errors} if errors else {}), examples={}, unchecked=0,
    )  # fmt: skip


def cells(**means: tuple[float, ...]):
    runs = {name: [repeat(seed, mean, mean) for seed, mean in enumerate(found)] for name, found in means.items()}
    return {cell.policy: cell for cell in compare("m", 0.3, 100.0, runs)}


def test_seeds_are_paired() -> None:
    """Both policies vary from seed to seed by far more than they differ; the difference is the same in each."""
    found = cells(adaptive=(10, 20, 30), no_wait=(11, 21, 31))
    assert (found["adaptive"].beyond_ms, found["adaptive"].ci95_ms) == (0, 0)
    assert (found["no_wait"].beyond_ms, found["no_wait"].ci95_ms) == (pytest.approx(1), pytest.approx(0))
    assert not found["no_wait"].same


def test_a_difference_within_its_interval_is_none() -> None:
    found = cells(adaptive=(10, 20, 30), no_wait=(14, 16, 31))
    assert found["no_wait"].same
    assert found["no_wait"].ci95_ms > found["no_wait"].beyond_ms > 0


def test_rows_a_batch_is_a_mean_over_batches() -> None:
    """Two requests in a batch of two and one in a batch of one are two batches."""
    mixed = repeat(0, 1, 1, 1)
    mixed.batch[:] = (2, 2, 1)
    (cell,) = compare("m", 0.3, 100.0, {"adaptive": [mixed]})
    assert cell.batch == pytest.approx(1.5)


def test_verdict_names_what_is_missed() -> None:
    won = verdict(list(cells(adaptive=(10, 20, 30), window=(12, 22, 32)).values()))
    lost = verdict(list(cells(adaptive=(12, 22, 32), window=(10, 20, 30)).values()))
    assert "the mean lowest" in won[0]
    assert "NOT" not in won[0]
    assert "NOT the lowest" in lost[0]


def test_verdict_on_the_tail() -> None:
    """Means alike, the slowest request twice as slow."""
    runs = {
        "adaptive": [repeat(seed, 10, 10, 40) for seed in (0, 1)],
        "no_wait": [repeat(seed, 20, 20, 20) for seed in (0, 1)],
    }
    (line,) = verdict(compare("m", 0.3, 100.0, runs))
    assert "NOT within 1.1" in line


def test_errors_are_counted() -> None:
    (cell,) = compare("m", 0.3, 100.0, {"adaptive": [repeat(0, 1, errors=2), repeat(1, 1, errors=1)]})
    assert cell.errors == 3
