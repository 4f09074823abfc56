"""Streams of a model that really writes: a client that hangs up makes room within one step."""

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
from app.engine.cpu.device import CpuDevice
from app.engine.cpu.places import Places
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.models.loading import load
from app.scheduler.scheduler import Scheduler
from tests import tiny_decoders

from .test_streaming import STREAM, Reader

MOST = 40
BODY = json.dumps({"text_input": "The ferry was late"}).encode()


class Steps:
    """Counts a decoder's steps; `halt` has its worker stand before one, until `go` is set."""

    def __init__(self, call: Any) -> None:
        self._step, self._loop = call.step, asyncio.get_running_loop()
        self.made = self._at = 0
        self.here, self.go = asyncio.Event(), threading.Event()
        call.step = self._counted

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


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Engine, ServedModel]]:
    tiny_decoders.save(tmp_path, "gpt2", MOST)
    device = CpuDevice((4,), threads=1, cores=1)
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        served = await engine.start(load(ModelSource("echo", 1, tmp_path)))
        assert isinstance(served, ServedModel)
        yield engine, served


async def test_a_connection_that_closes_frees_its_place_within_one_step(world: tuple[Engine, ServedModel]) -> None:
    """Whenever it does so, reading or not: the step that runs is the last one of its row."""
    engine, served = world
    steps, ended, places = Steps(served.model.call), asyncio.Event(), served.activations
    assert isinstance(places, Places)
    engine.watch(lambda unit, outcome, began, at: ended.set())
    for reads in (True, False, True, False, True, False):
        steps.halt(random.randrange(2, MOST - 2))
        reader = Reader(served)  # type: ignore[arg-type]
        if not reads:
            reader.connection.protocol.pause_writing()
        reader.send(STREAM, BODY)
        await steps.here.wait()
        assert places.rows == 1
        reader.connection.hang_up()
        await reader.connection.done()
        before = steps.made
        ended.clear()
        steps.go.set()
        async with asyncio.timeout(10):
            while list(engine.scheduler.running):
                await ended.wait()
                await asyncio.sleep(0)
        assert (steps.made, places.rows, served.pool.used) == (before, 0, 0)
