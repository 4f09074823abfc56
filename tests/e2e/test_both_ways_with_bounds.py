"""A key, small bounds and the end of the server, on both ways in which a request is taken: see test_both_ways.py.

With bounds this small, bodies that are too large are still small enough for either way.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from .conftest import Keeper
from .examples import PROTOCOLS, example
from .mistakes import ECHO, TYPED
from .server import DEMO, Server, eventually
from .test_both_ways import check, check_error, too_much_json
from .wire import Wire, get, infer, once, post

KEY = {"X-API-Key": "sesame", "X-Request-ID": "mine"}
BODY, TEXT, HELD = 62_914, 31_457, 104_857  # bytes: 0.06, 0.03 and 0.1 MiB
FLAGS = (
    "--model", f"echo={DEMO / 'echo'}", "--api-key", "sesame", "--max-body-mib", "0.06", "--max-json-mib", "0.03",
    "--max-inflight-mib", "0.1", "--max-connections", "40", "--drain-grace-s", "20",
)  # fmt: skip


@pytest.fixture
def server(keeper: Keeper, way: tuple[str, ...]) -> Server:
    kept = keeper.kept(("gate", "narrow"), *FLAGS, *way)
    kept.headers = KEY
    return kept


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_keys(server: Server, protocol: str) -> None:
    """Without the right one nothing is read but the head; the connection goes on."""
    asked = PROTOCOLS[protocol](1)
    missing, wrong = "an API key is needed: X-API-Key, or Authorization: Bearer", "the API key is wrong"
    before = server.outcomes("echo")
    async with await Wire.open(server.host) as wire:
        for headers, message in (
            ({}, missing), ({"Authorization": "sesame"}, missing), ({"Authorization": "Bearer "}, wrong),
            ({"X-API-Key": "Sesame"}, wrong), ({"X-API-Key": "no", "Authorization": "Bearer sesame"}, wrong),
        ):  # fmt: skip
            head, _, body = asked.wire(headers).partition(b"\r\n\r\n")
            answer = await wire.call(head + b"\r\n\r\n")
            check_error(answer, 401, message, request_id=None, www_authenticate="Bearer")
            wire.send(body)
            for right in ({"X-API-Key": "sesame"}, {"authorization": "bearer  sesame"}):
                check(await wire.call(asked.wire({**right, "X-Request-ID": "mine"})), asked)
    assert server.outcomes("echo") - before == {"ok": 10}


async def test_small_bounds(server: Server) -> None:
    before = server.outcomes("echo")
    async with await Wire.open(server.host) as wire:
        for path in (ECHO, "/v1/models/echo:predict", "/predict/echo"):
            for size, message in (
                (BODY + 1, f"body: expected at most {BODY} bytes, got {BODY + 1}"),
                (BODY, too_much_json(TEXT, BODY)),
                (TEXT + 1, too_much_json(TEXT, TEXT + 1)),
            ):
                check_error(await wire.call(post(path, b" " * size, {**TYPED, **KEY})), 413, message)
            check(await wire.call(example(1).wire(KEY)), example(1))
        asked = PROTOCOLS["V2 JSON"](1)
        check(await wire.call(post(asked.path, asked.body.ljust(TEXT), KEY)), asked)
        rows = BODY // 16
        raw = await wire.call(post(ECHO, bytes(16 * rows), {"Inference-Header-Content-Length": "0", **KEY}))
        check_error(
            raw,
            400,
            f"{rows} rows in one request: the queue of model 'echo' holds 1024; "
            "send at most 1024 at a time, or raise max_queue (--max-queue, or in model.toml)",
        )
    assert server.outcomes("echo") - before == {"too_large": 9, "ok": 4, "bad_request": 1}


async def test_bytes_held(server: Server) -> None:
    """What has come of a body counts until it is answered, or its client has left."""
    path, size = "/v2/models/narrow/infer", 60_000
    too_large = too_much_json(TEXT, size, "narrow", floats=1)

    def taken() -> bool:
        """Whether there was room for one more body: then it has been read, and found to be too large for JSON."""
        answer = server.post(path, b" " * size)
        if answer.status == 413:
            return True
        check_error(answer, 429, "too many request bodies are held at this moment", retry_after="1")
        return False

    begun = post(path, b" " * size, KEY)[:-1]
    async with await Wire.open(server.host) as slow:
        slow.send(begun)
        await asyncio.to_thread(eventually, lambda: not taken())
        check_error(await slow.call(b" "), 413, too_large)
        assert await asyncio.to_thread(taken)
        slow.send(begun)
        await asyncio.to_thread(eventually, lambda: not taken())
    await asyncio.to_thread(eventually, taken)


async def test_connections(server: Server) -> None:
    """Beyond 40, all but probes are refused; a connection on which that was said is closed, and no other."""
    async with AsyncExitStack() as stack:
        few = [await stack.enter_async_context(await Wire.open(server.host)) for _ in range(20)]
        check(await few[0].call(example(1).wire(KEY)), example(1))
        async with AsyncExitStack() as inner:
            more = [await inner.enter_async_context(await Wire.open(server.host)) for _ in range(22)]
            assert (await once(server.host, get("/livez"))).status == 200  # accepted after all those
            for wire in (few[0], more[0]):  # one that has been answered before, and one that has not
                answer = await wire.call(example(1).wire(KEY))
                check_error(answer, 503, "more than 40 connections are open", None, retry_after="1", connection="close")
                assert await wire.ended()
        await once(server.host, get("/livez"))  # when it is answered, those that were closed before are gone
        check(await few[1].call(example(2).wire(KEY)), example(2))
    await once(server.host, get("/livez"))


async def test_the_end(server: Server) -> None:
    """Told once, all that was accepted is answered, and closes its connection; told twice, what is left hears why."""
    gate = server.gate
    assert gate is not None
    async with AsyncExitStack() as stack:

        async def sent(request: bytes) -> Wire:
            wire = await stack.enter_async_context(await Wire.open(server.host))
            wire.send(request)
            return wire

        async def held(first: int) -> list[Wire]:
            """One request at the gate, and three behind it."""
            wires = [await sent(keyed(infer("gate", [2])))]
            await asyncio.to_thread(gate.wait)
            wires += [await sent(keyed(infer("gate", [first + n]))) for n in range(3)]
            await asyncio.to_thread(eventually, lambda: server.waiting("gate") == 3)
            return wires

        begun = example(1).wire(KEY)
        half, kept = await sent(begun[:-2]), await sent(begun)
        check(await kept.answer(), example(1))
        waiting = await held(900)
        server.tell()
        await asyncio.to_thread(server.line, "draining, 20 s of grace")
        kept.send(begun)  # it is still taken, and on a new connection, too
        waiting += [kept, await sent(keyed(infer("echo", [1, 2, 3, 4])))]
        await asyncio.to_thread(eventually, lambda: server.waiting("echo") == 1 + example(1).rows)
        gate.open()
        for wire in waiting:
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await wire.ended()
        assert (await half.call(begun[-2:])).headers["connection"] == "close"

        half, waiting = await sent(begun[:-2]), await held(910)
        server.tell()
        why = "the server was told to stop at once"
        for wire in waiting:
            check_error(await wire.answer(), 503, why, retry_after="1", connection="close")
            assert await wire.ended()
        check_error(await half.call(begun[-2:]), 503, why, retry_after="1", connection="close")
        gate.open()  # the process would go without, a little later
        assert await asyncio.to_thread(server.ended) == 0


def keyed(request: bytes) -> bytes:
    lines = "".join(f"\r\n{name}: {value}" for name, value in KEY.items()).encode()
    return request.replace(b"\r\n", lines + b"\r\n", 1)
