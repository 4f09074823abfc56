"""Invariant: best-effort requests never take the last thread, bytes or connections: real-time ones find theirs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.contract import CLASSES
from app.http.call import X_CLASS

from .echo import FRIENDLY, INFER, LIMITS, Caller, Echo, MakeCaller, body, with_code

REAL, BEST = CLASSES
BULK = {X_CLASS: BEST.encode()}


def of_default_class(model: Echo, klass: str) -> Echo:
    model.info = replace(model.info, batching=model.info.batching.model_copy(update={"default_class": klass}))
    return model


async def held(call: Caller, count: int) -> None:
    """Wait until so many calls have been submitted."""
    while call.model.open_leases < count:
        await call.model.ran.wait()
        call.model.ran.clear()


async def test_real_time_is_decoded_while_best_effort_uploads_fill_all_other_threads(
    caller: MakeCaller, model: Echo
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(LIMITS.threads))
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def decode(kind: str, body: bytes) -> dict[str, Any]:
        if body == b"bulk":
            begun.release()
            go_on.wait(10)
        return {"x": np.ones(4)}

    call = caller(with_code(model, decode=decode))
    sent = {b"content-type": b"audio/wav"}
    try:
        bulk = [asyncio.create_task(call(FRIENDLY, b"bulk", {**sent, **BULK})) for _ in range(3)]
        reply = await asyncio.wait_for(call(FRIENDLY, b"now", sent), 5)
        assert reply.status == 200
        assert begun.acquire(timeout=5)
        assert not any(task.done() for task in bulk)
    finally:
        go_on.set()
    assert [reply.status for reply in await asyncio.gather(*bulk)] == [200] * 3


@pytest.mark.parametrize("default", [REAL, BEST])
async def test_best_effort_bodies_leave_bytes_to_real_time(caller: MakeCaller, model: Echo, default: str) -> None:
    """1,500 of 2,000 bytes: four bodies of 400 bytes are one too many, and a fifth of real time still comes."""
    call = caller(of_default_class(model, default))
    model.opened = False
    bulk, now = ({}, {X_CLASS: REAL.encode()}) if default == BEST else (BULK, {})
    sent = body().ljust(400)
    waiting = [asyncio.create_task(call(INFER, sent, bulk)) for _ in range(3)]
    await held(call, 3)
    refused = await asyncio.wait_for(call(INFER, sent, bulk), 5)
    assert (refused.status, b"retry-after" in refused.headers) == (429, True)
    assert b"connection" not in refused.headers
    waiting.append(asyncio.create_task(call(INFER, sent, now)))
    await held(call, 4)
    call.gone.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert call.app.resources.bodies.held == 0


async def test_best_effort_requests_leave_connections_to_real_time(caller: MakeCaller, model: Echo) -> None:
    """Two of three: a best-effort request on the third is refused, and its connection closes."""
    call = caller(model, options={"connections": lambda: 3})
    refused = await call(INFER, body(), BULK)
    assert (refused.status, b"retry-after" in refused.headers) == (429, True)
    assert refused.headers[b"connection"] == b"close"
    assert refused.json() == {"error": "more than 2 connections are open: the rest are for real-time requests"}
    assert (await call(INFER, body())).status == 200
    assert (await caller(model, options={"connections": lambda: 2})(INFER, body(), BULK)).status == 200
    assert model.classes == [BEST, REAL, BEST]
