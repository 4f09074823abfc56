"""A plan is checked when it is made, and has the simulator's own instants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.generator.plan import BenchPlan, Target
from planner import arrivals


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8000", Target("localhost", 8000, False, "localhost:8000", "")),
        ("http://a", Target("a", 80, False, "a", "")),
        ("https://a.b/serve/", Target("a.b", 443, True, "a.b", "/serve")),
        ("http://[::1]:8000", Target("::1", 8000, False, "[::1]:8000", "")),
    ],
)
def test_url(url: str, expected: Target) -> None:
    assert Target.parse(url) == expected


def test_path_quotes_the_model() -> None:
    assert BenchPlan(url="http://a/x", model="a b/c", rate=1).path == "/x/v2/models/a%20b%2Fc"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://a"}, "url: expected http://host:port, got 'ftp://a'"),
        ({"url": "http://[::1"}, "url: expected http://host:port"),
        ({"url": "é"}, "url: expected http://host:port, got 'é'"),
        ({"rate": 0.0}, "rate: expected requests per second above 0, got 0.0"),
        ({"concurrency": 3}, "concurrency: a closed loop has no rate"),
        ({"repeats": 0}, "repeats: expected at least 1, got 0"),
        ({"deadline_ms": 0.0}, "deadline_ms: expected above 0 and below 1e6, got 0.0"),
        ({"rate": 1e7}, "rate: expected 0.0001 to 1e"),
        ({"rate": 1e-300}, "rate: expected 0.0001 to"),
        ({"rate": 1e6, "duration_s": 60}, "rate: expected at most 10000000 requests in a run"),
        ({"rate": None, "concurrency": 10**9}, "concurrency: expected at most 65536, got 1000000000"),
        ({"payload": "xml"}, "payload: expected json or binary, got 'xml'"),
        ({"headers": ("X",)}, "header: expected NAME: VALUE, got 'X'"),
        ({"headers": ("X: a\r\nY: b",)}, "header: expected NAME: VALUE"),
        ({"lengths": "lognormal:14:4"}, "lengths: expected a number"),
    ],
)
def test_wrong_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        BenchPlan(**{"url": "a", "model": "m", "rate": 5.0, **options})


@pytest.mark.parametrize("spec", ["poisson", "uniform", "gamma:2", "bursty:0.5:0.5", "steps:0.5x1,2x1"])
def test_instants_are_the_simulators(spec: str) -> None:
    plan = BenchPlan(url="a", model="m", rate=50_000, arrivals=spec)
    instants = plan.instants(plan.rate, 7, 3)
    drawn = np.concatenate([chunk for chunk, _ in zip(arrivals.make(spec, 50_000, 7).chunks(), range(9), strict=False)])
    assert len(instants) > arrivals.CHUNK  # more than one chunk was needed
    assert instants.tolist() == drawn[drawn < 3e9].tolist()


def test_trace_keeps_its_own_times(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("5\n5.5\n6\n9\n")
    plan = BenchPlan(url="a", model="m", arrivals=f"trace:{path}")
    assert plan.instants(None, 0, 2).tolist() == [0, 500_000_000, 1_000_000_000]
    assert plan.mean_rate == 0.75
