"""Best-effort requests never take the last thread, bytes or connections: real-time ones find theirs, and go first."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from resumed import running

from app.contract import CLASSES, QUICK_VALUES, Klass
from app.http.codecs.base import DecodedCall
from app.http.codecs.v2 import V2
from app.http.inference_routes import X_CLASS
from app.http.threads import HelperThreads

from .catalog import served, spec
from .echo import BULK, FRIENDLY, INFER, LIMITS, Caller, Echo, EchoLease, MakeCaller, body, of_default_class, with_code

REAL, BEST = Klass


class Work:
    """Functions on two threads that run until `end`; `begun` lists those that run or have run."""

    def __init__(self) -> None:
        self.threads = HelperThreads(2)
        self.begun: list[str] = []
        self.go_on: dict[str, threading.Event] = {}
        self.tasks: dict[str, asyncio.Future[None]] = {}

    def start(self, name: str, klass: Klass) -> None:
        self.go_on[name] = threading.Event()
        self.tasks[name] = running(self.threads.run(klass, self._run, name))

    def _run(self, name: str) -> None:
        self.begun.append(name)
        self.go_on[name].wait(10)

    async def end(self, *names: str) -> None:
        for name in names:
            self.go_on[name].set()
            await self.tasks[name]


@pytest.fixture
def two() -> Iterator[Work]:
    work = Work()
    yield work
    for event in work.go_on.values():
        event.set()


async def test_real_time_may_take_all_threads_and_goes_first(two: Work) -> None:
    for name, klass in (("first", REAL), ("second", REAL), ("best", BEST), ("late", REAL)):
        two.start(name, klass)
    await two.end("first", "late")
    assert "best" not in two.begun
    await two.end("second", "best")


async def test_who_leaves_takes_no_thread_along(two: Work) -> None:
    """While it waits, and while it runs."""
    for name in ("first", "second", "waiting"):
        two.start(name, REAL)
    left = two.tasks["waiting"], two.tasks["first"]
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    two.start("third", REAL)
    two.go_on["first"].set()
    await two.end("third", "second")
    assert two.begun == ["first", "second", "third"]


@pytest.mark.usefixtures("without_collector")
async def test_what_a_failed_function_was_given_is_freed_at_once() -> None:
    """A body of megabytes that is refused would else stay until the next collection."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    threads, body = HelperThreads(1), np.zeros(1)
    freed = weakref.ref(body)
    with suppress(ZeroDivisionError):
        await running(threads.run(REAL, lambda given: 1 / 0, body))
    del body
    await running(threads.run(REAL, int))  # the thread has let go of the function before
    assert freed() is None


@pytest.mark.usefixtures("without_collector")
async def test_what_was_given_by_who_leaves_is_freed_while_no_thread_is_free(two: Work) -> None:
    """A body that nobody counts any more would else stay until then."""
    for name in ("first", "second"):
        two.start(name, REAL)
    body = np.zeros(1)
    left, freed = running(two.threads.run(REAL, lambda given: None, body)), weakref.ref(body)
    left.cancel()
    await asyncio.wait([left])
    del body, left
    assert freed() is None
    await two.end("first", "second")


class NoThreads(ThreadPoolExecutor):
    def submit(self, *given: Any, **named: Any) -> Any:
        raise RuntimeError("can't start new thread")


async def test_a_thread_that_cannot_be_started_is_tried_again() -> None:
    loop, threads = asyncio.get_running_loop(), HelperThreads(1)
    loop.set_default_executor(NoThreads(1))
    with pytest.raises(RuntimeError, match="can't start"):
        await running(threads.run(REAL, int))
    loop.set_default_executor(ThreadPoolExecutor(1))
    assert await asyncio.wait_for(running(threads.run(REAL, int)), 5) == 0


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


async def test_a_models_hooks_run_off_the_loop(caller: MakeCaller, model: Echo) -> None:
    ran: list[threading.Thread] = []

    def decode(kind: str, body: bytes) -> dict[str, Any]:
        ran.append(threading.current_thread())
        return {"x": np.ones(4)}

    def present(outputs: Any) -> int:
        ran.append(threading.current_thread())
        return 1

    call = caller(with_code(model, decode=decode, present=present))
    assert (await call(FRIENDLY, b"a", {b"content-type": b"a/b"})).json() == 1
    assert (await call("/v1/models/echo:predict", b'{"instances": [{"b64": "YQ=="}]}')).status == 200
    assert (len(ran), threading.current_thread() in ran) == (3, False)


async def test_large_json_is_parsed_one_body_at_a_time_off_the_loop(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun, decode = threading.Event(), list[str](), V2.decode

    def parse(*args: Any) -> DecodedCall:
        begun.append(threading.current_thread().name)
        assert go_on.wait(10)
        return decode(*args)

    monkeypatch.setattr("app.http.infer.OFF_LOOP_BYTES", 200)
    monkeypatch.setattr("app.http.codecs.v2.OFF_LOOP_BYTES", 200)
    monkeypatch.setattr(V2, "decode", lambda *args: (parse if len(args[3]) > 200 else decode)(*args))
    large = [asyncio.create_task(call(INFER, body().ljust(300))) for _ in range(2)]
    try:
        assert (await asyncio.wait_for(call(INFER, body()), 5)).status == 200
        assert len(begun) <= 1
    finally:
        go_on.set()
    assert [reply.status for reply in await asyncio.gather(*large)] == [200] * 2
    assert len(begun) == 2
    assert threading.current_thread().name not in begun


LONG = QUICK_VALUES + 1


class LongLease(EchoLease):
    def output(self, values: Any) -> Any:
        return np.ones((1, LONG if self._model.info.name == "long" else 4), np.float32)


@pytest.mark.parametrize(
    ("name", "columns", "binary", "off"),
    [
        ("long", LONG, False, True), ("long", ("n", 0), False, True), ("long", LONG, True, False),
        ("echo", 4, False, False), ("echo", ("n", 0), False, False),
    ],
)  # fmt: skip
async def test_large_json_is_written_off_the_loop(
    caller: MakeCaller, name: str, columns: Any, binary: bool, off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of a kilobyte may have an answer of megabytes, in whose time no other would be served."""
    wrote, encode = list[threading.Thread](), V2.encode

    def seen(*args: Any) -> Any:
        wrote.append(threading.current_thread())
        return encode(*args)

    monkeypatch.setattr(V2, "encode", seen)
    made = served(name, (spec("x", "FP32", 4),), (spec("y", "FP32", columns),))
    call = caller(Echo(made.info, made.model, lease_type=LongLease))
    reply = await call(INFER, body(parameters={"binary_data_output": binary}))
    assert (reply.status, [thread is not threading.current_thread() for thread in wrote]) == (200, [off])


@pytest.mark.parametrize("default", CLASSES)
async def test_best_effort_bodies_leave_bytes_to_real_time(call: Caller, default: str) -> None:
    """1,500 of 2,000 bytes: four bodies of 400 bytes are one too many, and a fifth of real time still comes."""
    of_default_class(call.model, default).opened = False
    bulk, now = ({}, {X_CLASS: b"realtime"}) if default == "best_effort" else (BULK, {})
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


async def test_best_effort_requests_leave_connections_to_real_time(caller: MakeCaller, model: Echo) -> None:
    """Two of three: a best-effort request on the third is refused, and its connection closes."""
    call = caller(connections=lambda: 3)
    refused = await call(INFER, body(), BULK)
    assert (refused.status, b"retry-after" in refused.headers) == (429, True)
    assert refused.headers[b"connection"] == b"close"
    assert refused.error == "more than 2 connections are open: the rest are for real-time requests"
    assert (await call(INFER, body())).status == 200
    assert (await caller(connections=lambda: 2)(INFER, body(), BULK)).status == 200
    assert model.classes == ["best_effort", "realtime", "best_effort"]
