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
from app.engine.cpu.text_rows import TextRows
from app.engine.engine import Engine
from app.engine.served_model import ServedModel
from app.models.loading import load
from tests import tiny_decoders
from tests.engine.places import on_cpu

from .test_streaming import STREAM, Reader

MOST = 40
BODY = json.dumps({"text_input": "The ferry was late"}).encode()


class Steps:
    """Counts a decoder's steps; `halt` has its worker stand before one, until `go` is set."""

    def __init__(self, call: Any) -> None:
        self._step, self._loop = call.decoder.step, asyncio.get_running_loop()
        self.made = self._at = 0
        self.here, self.go = asyncio.Event(), threading.Event()
        call.decoder.step = self._counted

    def halt(self, step: int) -> None:
        self._at = self.made + step
        self.here.clear()
        self.go.clear()

    def _counted(self, *args: Any) -> Any:
        self.made += 1
        if self.made == self._at:
            self._loop.call_soon_threadsafe(self.here.set)
            assert self.go.wait(10)
        return self._step(*args)


class World:
    def __init__(self, engine: Engine, served: ServedModel) -> None:
        self.engine, self.served = engine, served
        self.steps = Steps(served.model.call)
        self._ended = asyncio.Event()
        engine.watch(lambda unit, outcome, began, ended: self._ended.set())

    def reader(self) -> Reader:
        return Reader(self.served)  # type: ignore[arg-type]

    @property
    def places(self) -> TextRows:
        assert isinstance(self.served.activations, TextRows)
        return self.served.activations

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
        world.steps.halt(random.randrange(2, MOST - 2))
        reader = world.reader()
        if not reads:
            reader.connection.protocol.pause_writing()
        reader.send(STREAM, BODY)
        await world.steps.here.wait()
        assert len(world.places) == 1
        reader.connection.hang_up()
        await reader.connection.done()
        before = world.steps.made
        world.steps.go.set()
        await world.idle()
        assert (world.steps.made, len(world.places), world.served.pool.used) == (before, 0, 0)


async def test_a_server_that_stops_ends_a_stream_with_an_event(world: World) -> None:
    """At its drain limit; until then the stream goes on."""
    world.steps.halt(10)
    reader, waits = world.reader(), world.reader()
    reader.send(STREAM, BODY)
    await world.steps.here.wait()
    await reader.more()
    waits.send(STREAM, BODY)
    await asyncio.sleep(0)
    world.engine.abort("the server has stopped before this call was answered")
    await reader.connection.done()
    await waits.connection.done()
    *pieces, last = reader.events
    assert last == {"error": "the server has stopped before this call was answered"}
    assert pieces
    assert all(piece["text_output"] for piece in pieces)
    assert waits.head.startswith(b"HTTP/1.1 503")
    world.steps.go.set()
    await world.idle()
    assert len(world.places) == 0


async def test_a_client_that_does_not_read_holds_up_nobody_and_gets_its_text_at_last(world: World) -> None:
    slow, quick = world.reader(), world.reader()
    slow.connection.protocol.pause_writing()
    slow.send(STREAM, BODY)
    quick.send(STREAM, BODY)
    await quick.connection.done()
    await world.idle()
    assert (len(world.places), world.served.pool.used) == (0, 0)  # the slow one's, too
    slow.connection.protocol.resume_writing()
    await slow.connection.done()
    texts = ["".join(event["text_output"] for event in reader.events) for reader in (slow, quick)]
    assert texts[0] == texts[1] != ""
    assert len(slow.events) <= 2 < len(quick.events)
