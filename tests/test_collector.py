"""Garbage is collected where that disturbs least, and memory stays bounded where the server is never idle."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

import pytest

from app import process
from app.collector import Collector

MIB = 1 << 20
NOW, CHANGED, ALL = ["collect", "return"], ["collect", "freeze", "return"], ["unfreeze", "collect", "freeze", "return"]


class Weights:
    pass


class World:
    """A collector, what it tells Python and the C library, and the memory of the process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident = 1000 * MIB
        self.log: list[str] = []
        self.garbage: list[object] = []  # what the next collection frees
        for name in ("collect", "freeze", "unfreeze", "set_threshold"):
            monkeypatch.setattr(gc, name, lambda *given, name=name: self._note(name))
        monkeypatch.setattr(process, "return_freed_memory", lambda: self.log.append("return"))
        self.collector = Collector(1600 * MIB, lambda: self.resident)

    def _note(self, what: str) -> int:
        self.log.append(what)
        if what == "collect":
            self.garbage.clear()
        return 0

    async def after(self, *inputs: Callable[[], None]) -> list[str]:
        """What the collector does at these inputs."""
        self.log.clear()
        for one in inputs:
            one()
        if self.collector._returning is not None:  # it may be done, its callback not yet called, from Python 3.14 on
            await asyncio.wait([self.collector._returning])
        return self.log.copy()


def built(collector: Collector) -> None:
    with collector.building():
        pass


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(monkeypatch)
    assert await made.after(made.collector.begin) == ["collect", "freeze", "set_threshold", "return"]  # of the loads
    yield made
    made.collector.close()
    assert made.collector._time not in gc.callbacks


async def test_it_does_nothing_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    one = world.collector
    world.resident *= 2
    build = partial(built, one)
    assert await world.after(build, one.models_changed, one.look, one.tick, one.tick, one.close) == []


async def test_growth_by_a_part_of_the_limit_is_looked_into(world: World) -> None:
    one = world.collector
    assert one.growth == 100 * MIB
    assert Collector(None).growth == 256 * MIB
    world.resident += one.growth
    assert await world.after(one.look) == []
    world.resident += 1
    assert await world.after(one.look) == NOW
    assert await world.after(one.look) == []  # it was no garbage: the next look is after as much again
    world.resident += one.growth + 1
    assert await world.after(one.look) == NOW


async def test_less_growth_where_the_server_is_idle(world: World) -> None:
    one = world.collector
    world.resident += 20 * MIB
    assert await world.after(one.look, one.tick) == []
    assert await world.after(one.tick) == NOW
    assert await world.after(one.tick) == []


async def test_what_a_load_left_is_walked_once_the_server_is_idle(world: World) -> None:
    one = world.collector
    assert await world.after(one.models_changed, one.look) == CHANGED
    assert await world.after(one.tick) == []
    assert await world.after(one.tick) == ALL
    assert await world.after(one.tick) == []


async def test_only_new_objects_are_walked_while_models_are_built_and_none_of_them_later(world: World) -> None:
    one = world.collector
    assert await world.after(partial(built, one)) == ["collect", "set_threshold", "collect", "freeze", "set_threshold"]
    with suppress(ZeroDivisionError), one.building():  # what a failed load has left is not frozen
        assert await world.after(partial(built, one)) == ["collect", "set_threshold", "collect", "freeze"]
        _ = 1 // 0
    assert world.log[-2:] == ["freeze", "set_threshold"]


async def test_an_unloaded_model_that_is_still_there_is_looked_for_everywhere(world: World) -> None:
    one = world.collector
    gone, cyclic, frozen = Weights(), Weights(), Weights()
    one.unloaded([gone, 7])
    del gone
    assert await world.after(one.models_changed) == CHANGED
    world.garbage.append(cyclic)
    one.unloaded([cyclic])
    del cyclic
    assert await world.after(one.models_changed) == CHANGED
    one.unloaded([frozen])
    assert await world.after(one.models_changed) == ["collect", *ALL]
    assert await world.after(one.models_changed) == CHANGED  # somebody has it: it is looked for once


def test_collections_are_timed() -> None:
    one = Collector(None)
    for _ in range(2):
        one._time("start", {})
        one._time("stop", {})
    assert one.count == 2
    assert one.seconds >= one.longest_s > 0
