"""The search ends within its precision of the true peak, and an overloaded run is known by more than its percentile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.generator import peak
from loadtest.generator import run as bench
from loadtest.generator.peak import PRECISION, Peak, Try, find_peak, judge, search
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Lagging

from .made import MS, repeat
from .scripted import http, model, serving, v2


def searched(limit: float, start: float) -> tuple[Try | None, Try, list[float]]:
    rates: list[float] = []

    async def probe(rate: float) -> Try:
        rates.append(rate)
        return Try(rate, 1.0, rate, "" if rate <= limit else "too much")

    low, high = asyncio.run(search(probe, start))
    return low, high, rates


@given(st.floats(0.5, 1e5), st.floats(0.5, 1e4))
def test_search_closes_in_on_the_limit(limit: float, start: float) -> None:
    low, high, rates = searched(limit, start)
    assert low.rate <= limit < high.rate <= low.rate * (1 + PRECISION)
    assert len(rates) <= abs(math.log2(limit / start)) + 3 + 5


def test_no_limit_is_found() -> None:
    with pytest.raises(ValueError, match="rate: no limit was found"):
        searched(math.inf, 100)


LATE = np.array([0] * 300 + [55 * MS] * 100)


@pytest.mark.parametrize(
    ("latencies", "more", "why"),
    [
        ([5.0] * 400, {}, ""),
        ([5.0] * 390 + [60.0] * 10, {}, "99th percentile above 50 ms"),
        ([5.0] * 399 + [-1.0], {}, "1 x status 503"),
        (list(np.linspace(1, 45, 400)), {}, ""),  # 11 ms a second: a wandering queue
        (list(np.linspace(1, 49, 100)), {}, "latency grows by 48 ms a second"),
        ([5.0], {}, ""),  # too few to see it grow
        ([5.0] * 400, {"elapsed_s": 5.0}, "answers are fewer than requests"),
        ([5.0] * 300 + [60.0] * 100, {"lag_ns": LATE}, "the load generator was late: 55.0 ms"),
        ([5.0] * 300 + [160.0] * 100, {"lag_ns": LATE}, "99th percentile above 50 ms"),
    ],
)
def test_judge(latencies: list[float], more: dict[str, Any], why: str) -> None:
    tried = judge(repeat(latencies, **more), 100, 50)
    assert tried.why == why
    assert tried.kept is (not why)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_SETTLE_S", 0.01)
    monkeypatch.setattr("gc.collect", lambda: 0)  # of all that the suite has loaded it takes longer than a run
    monkeypatch.setattr(peak, "_STEPS_DOWN", 2)


async def peak_of(slo_ms: float, told: Callable[[Try], None] = lambda tried: None) -> Peak:
    """Of a server that answers at once."""
    async with serving(model(lambda _, request: http(v2()))) as server:
        plan = BenchPlan(url=server.url, model="m", duration_s=0.05, warmup_s=0, repeats=2, max_lag_ms=1e5)
        return await find_peak(plan, slo_ms, told)


def three_hundred(monkeypatch: pytest.MonkeyPatch, why: str = "too much") -> None:
    """The runs are real, the verdict is by rate: more than 300/s is too much."""
    monkeypatch.setattr(peak, "judge", lambda one, rate, slo: Try(rate, 1.0, rate, why if rate > 300 else ""))


@pytest.mark.usefixtures("_quick")
async def test_find_peak_reports_its_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    three_hundred(monkeypatch)
    told: list[Try] = []
    found = await peak_of(1e5, told.append)
    assert found.tries == tuple(told)
    assert found.result.plan.rate == max(tried.rate for tried in told if tried.kept)
    assert 300 / (1 + PRECISION) <= (found.result.plan.rate or 0) <= 300
    assert len(found.result.repeats) == 2


@pytest.mark.usefixtures("_quick")
async def test_a_peak_that_the_repeats_do_not_keep_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    three_hundred(monkeypatch)
    told: list[Try] = []
    with pytest.raises(ValueError, match="slo_ms: the repeats kept 1e-06 ms at no rate"):
        await peak_of(1e-6, told.append)
    assert "over 2 repeats" in told[-1].why
    assert told[-1].rate < told[-2].rate


@pytest.mark.usefixtures("_quick")
async def test_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_DOUBLINGS", 2)
    with pytest.raises(ValueError, match="slo_ms: no rate keeps 1e-06 ms"):
        await peak_of(1e-6)


@pytest.mark.usefixtures("_quick")
async def test_where_the_client_was_the_limit_the_rate_below_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    three_hundred(monkeypatch, f"{peak._LAG}: x")
    with pytest.raises(Lagging, match="the load generator, not the server, was the limit") as caught:
        await peak_of(1e5)
    assert caught.value.result.plan.rate <= 300
