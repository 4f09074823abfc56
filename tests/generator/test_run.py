"""A whole measurement against a server in this loop that speaks V2 and nothing more."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Interrupted, Lagging, Unusable, measure
from planner import arrivals

from .made import MS, repeat, result
from .scripted import Scripted, Server, http, model, serving, v2


def plan(server: Server, **options: Any) -> BenchPlan:
    """Of a server that runs in the client's own loop, on whatever machine: it may lag."""
    given = {"model": "m", "rate": 300.0, "duration_s": 0.1, "warmup_s": 0.0, "repeats": 2, "seed": 5}
    return BenchPlan(**{**given, "max_lag_ms": 1e5, "url": server.url, **options})


async def test_open_loop() -> None:
    script = model(lambda _, request: http(v2(), Server_Timing="compute;dur=0.5, total;dur=0.9", X_Batch_Size=2))
    async with serving(script) as server:
        found = await measure(plan(server))
    for k, one in enumerate(found.repeats):
        first = next(iter(arrivals.make("poisson", 300.0, 5 + k).chunks()))
        assert one.intended_ns.tolist() == first[first < 100 * MS].tolist()  # the simulator's
        assert (one.latency_ns > 0).all()
        assert set(one.compute_ns.tolist()) == {500_000}
    assert found.completed == found.requests == found.status[200]
    assert (found.errors, found.figures["mean_batch"]) == ({}, pytest.approx(2))
    assert len(server.requests) == found.requests + 2  # the metadata, and one request alone
    assert len({request for request in server.requests if request.startswith(b"POST")}) > 10


async def test_ctrl_c_keeps_the_complete_runs() -> None:
    first = next(iter(arrivals.make("poisson", 300.0, 5).chunks()))
    complete = 2 + int((first < 100 * MS).sum())  # the metadata, one request alone, and the first run

    def interrupting(connection: Scripted, request: bytes) -> bytes:
        if len(connection.server.requests) > complete + 3:
            measuring.cancel()
        return http(v2())

    async with serving(model(interrupting)) as server:
        measuring = asyncio.ensure_future(measure(plan(server, repeats=3)))
        with pytest.raises(Interrupted, match="interrupted: 1 of 3 runs are complete") as caught:
            await measuring
    assert caught.value.result.completed == complete - 2


async def test_closed_loop_and_warm_up() -> None:
    async with serving(model(lambda _, request: http(v2()))) as server:
        found = await measure(plan(server, rate=None, concurrency=3, warmup_s=0.05))
    assert found.completed == found.requests > 2 * 3
    assert found.connections == 3
    assert len(server.requests) > found.requests + 2  # the warm-up's are not counted


async def test_what_goes_wrong_is_counted_by_kind() -> None:
    def mixed(connection: Scripted, request: bytes) -> bytes:
        number = len(connection.server.requests)
        if number > 2 and number % 4 == 0:
            return http({"error": "full"}, 429)
        return http(v2(value=9.0 if number > 2 and number % 4 == 1 else 0.5))

    async with serving(model(mixed)) as server:
        found = await measure(plan(server, rate=2000.0, repeats=1))
    assert set(found.errors) == {"status 429", "wrong values"}
    assert found.completed + sum(found.errors.values()) == found.requests
    assert found.examples["status 429"] == 'status 429: {"error": "full"}'
    assert sum(found.status.values()) == found.requests


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (lambda _, request: http({"error": "no such"}, 404),
         "url: expected a V2 server with model 'm', got status 404"),
        (lambda _, request: http(b"<html>"), "model: expected V2 metadata"),
        (model(lambda _, request: http({"error": "axis"}, 400)),
         "model: expected a right answer of 'm', got status 400"),
        (model(lambda _, request: http({"outputs": []})), "got wrong outputs"),
    ],
)  # fmt: skip
async def test_unusable(script: Any, message: str) -> None:
    async with serving(script) as server:
        with pytest.raises(ValueError, match=message):
            await measure(plan(server))


async def test_what_cannot_be_measured() -> None:
    script = model(lambda _, request: http(v2()))
    async with serving(script) as server:
        with pytest.raises(ValueError, match="rate: expected --rate"):
            await measure(plan(server, rate=None))
        with pytest.raises(ValueError, match=r"duration_s: no request falls into 0.1 s"):
            await measure(plan(server, rate=0.001))
    with pytest.raises(Unusable, match="url: expected a V2 server with model 'm', got connect: "):
        await measure(plan(server))


async def test_the_collector_is_left_as_it_was() -> None:
    seen: list[bool] = []

    def infer(connection: Scripted, request: bytes) -> bytes:
        seen.append(gc.isenabled())
        return http(v2())

    async with serving(model(infer)) as server:
        await measure(plan(server, repeats=1))
    assert seen[-1] is False
    assert gc.isenabled()


def lagging(latency_ms: float, lags_ms: list[float], **options: Any) -> None:
    """Requests that the server answers after the same time, sent too late by these."""
    lags = np.array([round(lag * MS) for lag in lags_ms], np.int64)
    result(repeat([latency_ms + lag for lag in lags_ms], lag_ns=lags), **options).check_lag()


def test_lag_may_be_a_tenth_of_the_latency() -> None:
    tail = [0.0] * 90 + [5.0] * 10
    for latency_ms, lags_ms in ((10, [1.0] * 100), (0.2, [0.19] * 100), (100, [0.0] * 90 + [9.0] * 10)):
        lagging(latency_ms, lags_ms)
    lagging(10, tail, max_lag_ms=6)
    for latency_ms, lags_ms, message in (
        (10, [2.0] * 100, "2.000 ms of the latency's median are its own, limit 1.200 ms"),
        (0.2, [0.5] * 100, "0.500 ms of the latency's median are its own, limit 0.200 ms"),
        (10, tail, "5.000 ms of the latency's 99th percentile are its own, limit 1.500 ms"),
    ):
        with pytest.raises(Lagging, match=message) as caught:
            lagging(latency_ms, lags_ms)
        assert caught.value.result is not None


def test_closed_loop_has_lags() -> None:
    beats = np.array([2 * MS] * 7)
    result(repeat([30.0] * 100, lag_ns=beats), rate=None, concurrency=3).check_lag()
    with pytest.raises(Lagging, match=r"2.000 ms of the latency's median are its own, limit 1.000 ms"):
        result(repeat([10.0] * 100, lag_ns=beats), rate=None, concurrency=3).check_lag()
