"""Figures of runs against numbers worked out by hand, intervals against scipy's quantiles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats as scipy_stats

from loadtest.generator.client import TimedRequest
from loadtest.generator.http import Response
from loadtest.generator.payload import Body, Tensor
from loadtest.generator.seen_answers import UNCHECKED, SeenAnswers
from loadtest.generator.stats import FIGURES, collect, interval, percentile, summary

from .made import MS, repeat
from .scripted import v2


def test_percentile_is_the_nearest_rank() -> None:
    values = np.arange(1, 101) * MS
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 0.999, 1)] == [1, 50, 99, 100, 100]
    assert percentile(values[:0], 0.5) is None


@pytest.mark.parametrize("count", [2, 3, 10, 31, 32, 60, 500])
def test_interval_is_students(count: int) -> None:
    values = np.random.default_rng(count).normal(10, 3, count)
    expected = scipy_stats.t.ppf(0.975, count - 1) * scipy_stats.sem(values)
    assert interval(list(values)) == pytest.approx(expected, rel=2e-3)


def test_figures_of_one_run() -> None:
    one = repeat(
        [1.0] * 50 + [3.0] * 49 + [-1.0], elapsed_s=2.0,
        batch=np.array([4] * 40 + [1] * 10 + [0] * 50), compute_ns=np.array([2 * MS] * 50 + [-1] * 50),
    )  # fmt: skip
    found = one.figures(deadline_ms=2.0)
    assert list(found) == list(FIGURES)
    assert found["mean_ms"] == pytest.approx((50 + 147) / 99)
    assert (found["p50_ms"], found["p90_ms"], found["max_ms"]) == (1.0, 3.0, 3.0)
    assert (found["throughput"], found["goodput"]) == (99 / 2, 50 / 2)
    assert found["mean_batch"] == 50 / 20  # 40 rows in 10 batches of 4, and 10 alone
    assert (found["compute_ms"], found["server_ms"]) == (2.0, None)
    assert one.figures(None)["goodput"] is None


def test_summary_is_the_mean_of_the_runs() -> None:
    found = summary([repeat([1.0] * 10), repeat([2.0] * 10), repeat([6.0] * 10)], None)
    assert (found["mean_ms"], found["max_ms"], found["max_ms_ci95"]) == (3.0, 6.0, None)
    assert found["mean_ms_ci95"] == pytest.approx(4.303 * np.std([1, 2, 6], ddof=1) / 3**0.5)
    assert found["mean_batch"] is None


def test_collect() -> None:
    """Four requests: right, refused, answered wrongly, and right but not compared."""
    answers = SeenAnswers([Body(b"", 1, (Tensor("y", "FP32", (1,), batched=True),))], values=True)
    right, wrong = (
        answers.note(0, Response(200, b"", json.dumps(answer).encode(), True)) for answer in (v2(1, 1.0), v2(1, 2.0))
    )
    log = []
    for number, (status, answer) in enumerate([(200, right), (429, 0), (200, wrong), (200, UNCHECKED)]):
        at = 1000 * MS + 10 * MS * number
        log.append(TimedRequest(at, 0, 0, at + MS, at + 3 * MS, at + 5 * MS, status, answer))
    log[0].head = b"http/1.1 200 ok\r\nx-batch-size: 8\r\nserver-timing: queue;dur=0.5, compute;dur=1.25, total;dur=3"
    log[1].fault = "status 429: full"
    found = collect(log, 990 * MS, 0.04, 7, answers.judge(), ())
    assert found.intended_ns.tolist() == [10 * MS, 20 * MS, 30 * MS, 40 * MS]
    assert found.latency_ns.tolist() == [5 * MS, -1, -1, 5 * MS]
    assert (found.lag_ns.tolist(), found.wait_ns.tolist()) == ([MS] * 4, [2 * MS] * 4)
    assert (found.batch.tolist(), found.compute_ns.tolist()) == ([8, 0, 0, 0], [1_250_000, -1, -1, -1])
    assert found.server_ns.tolist() == [3 * MS, -1, -1, -1]
    assert (dict(found.status), dict(found.errors)) == ({200: 3, 429: 1}, {"status 429": 1, "wrong values": 1})
    assert found.examples["status 429"] == "status 429: full"
    assert (found.unchecked, found.elapsed_s, found.seed) == (1, 0.045, 7)
