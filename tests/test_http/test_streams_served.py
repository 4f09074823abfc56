"""Streams of a model that really writes: who hangs up makes room within one step, who does not read costs no more than
its text, and a server that stops ends them with an event."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.contract import ModelSource
from app.engine.engine import Engine
from app.engine.served_model import ServedModel
from app.models.loading import load
from tests import tiny_decoders
from tests.engine.places import on_cpu

from .test_streaming import STREAM, Reader

MOST = 40
BODY = json.dumps({"text_input": "The ferry was late"}).encode()


class World:
    """A model that serves. `halt` has its worker stand before a step, until `go` is set."""

    def __init__(self, engine: Engine, served: ServedModel) -> None:
        self.engine, self.served = engine, served
        self.steps = self._halt_at = 0
        self.here, self.go = asyncio.Event(), threading.Event()
        self._ended, self._loop = asyncio.Event(), asyncio.get_running_loop()
        decoder: Any = served.model.call.decoder  # type: ignore[attr-defined]
        self._step, decoder.step = decoder.step, self._counted
        engine.watch(lambda unit, outcome, began, ended: self._ended.set())

    def halt(self, step: int) -> None:
        self._halt_at = self.steps + step
        self.here.clear()
        self.go.clear()

    def _counted(self, *args: Any) -> Any:
        self.steps += 1
        if self.steps == self._halt_at:
            self._loop.call_soon_threadsafe(self.here.set)
            assert self.go.wait(10)
        return self._step(*args)

    def reader(self) -> Reader:
        return Reader(self.served)  # type: ignore[arg-type]

    @property
    def held(self) -> tuple[int, int]:
        """Places of texts, and slots."""
        return len(self.served.activations), self.served.pool.used  # type: ignore[arg-type]

    async def idle(self) -> None:
        """Until no unit runs."""
        async with asyncio.timeout(10):
            while list(self.engine.scheduler.units.values()):
                self._ended.clear()
                await self._ended.wait()
                await asyncio.sleep(0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    tiny_decoders.save(tmp_path, "gpt2", MOST)
    async with on_cpu(load(ModelSource("echo", 1, tmp_path))) as (engine, served):
        yield World(engine, served)


async def test_a_connection_that_closes_frees_its_place_within_one_step(world: World) -> None:
    """Whenever it does so, reading or not: the step that runs is the last one of its row."""
    for reads in (True, False, True, False, True, False):
        world.halt(random.randrange(2, MOST - 2))
        reader = world.reader()
        if not reads:
            reader.connection.protocol.pause_writing()
        reader.send(STREAM, BODY)
        await world.here.wait()
        assert world.held[0] == 1
        reader.connection.hang_up()
        await reader.connection.done()
        before = world.steps
        world.go.set()
        await world.idle()
        assert (world.steps, world.held) == (before, (0, 0))


async def test_a_server_that_stops_ends_a_stream_with_an_event(world: World) -> None:
    """At its drain limit; until then the stream goes on."""
    world.halt(10)
    reader, waits = world.reader(), world.reader()
    reader.send(STREAM, BODY)
    await world.here.wait()
    await reader.more()
    waits.send(STREAM, BODY)
    await asyncio.sleep(0)
    world.engine.abort("the server has stopped before this call was answered")
    await reader.connection.done()
    await waits.connection.done()
    *pieces, last = reader.texts
    assert last == "the server has stopped before this call was answered"
    assert pieces
    assert all(pieces)
    assert waits.head.startswith(b"HTTP/1.1 503")
    world.go.set()
    await world.idle()
    assert world.held == (0, 0)


async def test_a_client_that_does_not_read_holds_up_nobody_and_gets_its_text_at_last(world: World) -> None:
    slow, quick = world.reader(), world.reader()
    slow.connection.protocol.pause_writing()
    slow.send(STREAM, BODY)
    quick.send(STREAM, BODY)
    await quick.connection.done()
    await world.idle()
    assert world.held == (0, 0)  # the slow one's, too
    slow.connection.protocol.resume_writing()
    await slow.connection.done()
    assert "".join(slow.texts) == "".join(quick.texts) != ""
    assert len(slow.texts) <= 2 < len(quick.texts)
