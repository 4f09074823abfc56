"""The Python client against the application itself, in process: what it sends is understood, and what comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from app.contract import Batching
from app.errors import DeadlineExceeded, ModelFailed
from app.http.access import Access
from app.http.asgi import HttpApp
from app.http.body import Limits
from app.http.errors import install_error_handlers
from app.http.keys import keys_of
from app.http.resources import Resources
from app.http.routes import control
from starling_client import AsyncClient, BadRequest, NotFound, Retry, StarlingError, Unauthorized, Unavailable

from .catalog import FakeCatalog, FakeHealth, served, spec
from .test_inference import Echo


@dataclass
class Health(FakeHealth):
    closing: bool = False


@pytest.fixture
def model() -> Echo:
    plain = served("echo", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))
    return Echo(replace(plain.info, batching=Batching(max_queue=8)), plain.model)


Connect = Callable[..., Any]


@pytest.fixture
def connect(model: Echo) -> Connect:
    """A client of the application with one model, `echo`, whose version 2 is loading. Its pauses take no time."""

    @asynccontextmanager
    async def open_client(*, key: str | None = None, **options: Any) -> AsyncIterator[AsyncClient]:
        others = FastAPI()
        others.include_router(control.router)
        install_error_handlers(others)
        limits = Limits(body=600, json=500, inflight=9000, pixels=100, body_timeout_s=5, connections=3)
        access = Access(keys_of("api_key", key, None))
        app = HttpApp(others, Resources(limits, access=access, connections=lambda: 1))
        state = {"catalog": FakeCatalog({"echo": {"1": model, "2": None}}), "health": Health()}

        async def stateful(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(stateful)) as http:
            client = AsyncClient("http://app", http=http, **options)

            async def no_time(seconds: float) -> None:
                pauses.append(seconds)

            pauses: list[float] = []
            client._sleep = no_time  # type: ignore[assignment]
            client.pauses = pauses  # type: ignore[attr-defined]
            yield client

    return open_client


X = np.arange(4, dtype="<f4").reshape(1, 4)


@pytest.mark.parametrize("binary", [None, False])
async def test_rows_there_and_back(connect: Connect, model: Echo, binary: bool | None) -> None:
    async with connect(binary=binary) as client:
        for count in (1, 2, 8):
            x = np.random.default_rng(count).standard_normal((count, 4), "f4")
            assert np.array_equal(await client.predict("echo", x), x)
        found = await client.infer("echo", X, request_id="mine")
    assert (found.version, found.request_ids, found.batch_size, found.lengths) == ("1", ("mine",), 5, {})
    assert (found.queue_ms, found.compute_ms) == (2, 3)
    assert found.total_ms > 0


async def test_what_the_call_asks_for(connect: Connect, model: Echo) -> None:
    async with connect() as client:
        await client.predict(
            "echo", X, timeout_ms=1.5, priority=3, service_class="best_effort", parameters={"k": 1}, version=1
        )
    assert model.asked["arrived_ns"] > 0
    wanted = {"klass": "best_effort", "priority": 3, "timeout_us": 1500, "parameters": {"k": 1}}
    assert {name: model.asked[name] for name in wanted} == wanted


async def test_metadata_models_and_readiness(connect: Connect) -> None:
    async with connect() as client:
        assert await client.models() == ["echo"]
        found = await client.metadata("echo")
        assert (found.versions, found.inputs[0].shape, found.outputs[0].datatype) == (("1",), (-1, 4), "FP32")
        assert [await client.ready(), await client.ready("echo"), await client.ready("echo", 2)] == [True, True, False]
        with pytest.raises(NotFound, match="unknown model 'ekko'"):
            await client.ready("ekko")


async def test_errors_carry_the_servers_words(connect: Connect, model: Echo) -> None:
    async with connect(retry=Retry(attempts=1)) as client:
        with pytest.raises(BadRequest, match=r"400: inputs\[0\] \(x\).shape: expected shape \[rows, 4\]") as raised:
            await client.predict("echo", [[1, 2]], request_id="r-1")
        assert (raised.value.request_id, raised.value.code) == ("r-1", "bad_request")
        with pytest.raises(Unavailable, match="is loading") as unready:
            await client.predict("echo", X, version=2)
        assert unready.value.retry_after_s in (7, 8, 9)
        for error in (ModelFailed("m failed"), DeadlineExceeded("the deadline passed")):
            model.fails = error
            with pytest.raises(StarlingError, match=error.message) as other:
                await client.predict("echo", X)
            assert (other.value.status, other.value.code) == (error.status, error.code)


async def test_a_key(connect: Connect) -> None:
    async with connect(key="k") as client:
        with pytest.raises(Unauthorized, match="an API key is needed"):
            await client.predict("echo", X)
        assert await client.ready()
    async with connect(key="k", api_key="k") as client:
        assert np.array_equal(await client.predict("echo", X), X)
