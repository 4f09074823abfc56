"""What a server that runs knows of its models: the loads that it served, and pairs of models that serve together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes import MS, FakeDevice, virtual, virtual_loop
from torch import nn

from app.contract import Model
from app.engine.profiling.cache import ProfileCache, ProfileKey, architecture_of, device_name
from app.engine.profiling.profiled_model import Origin, ProfiledModel
from app.engine.profiling.served_loads import ServedLoads
from app.observe.metrics import ModelStats
from app.scheduler.estimates.pairs import Pair, PairSlowdowns, PairTime
from app.scheduler.estimates.profile import linear

from ..rig import Rig, make_model, serving
from .test_idle import keep

# What requests cost a server is counted where it can be said which request cost what.


S = 1_000_000_000


class Server:
    """One that has these models, which are told by hand what they answered; each request takes the loop 1 ms."""

    def __init__(self, *names: str, steps: object = None) -> None:
        executor = cast("Any", SimpleNamespace(steps=steps))
        self.models = [
            ProfiledModel(
                executor, linear(1, 0, 8), Origin.CACHE, program=program, stats=ModelStats(name, "1"), spread=0.1
            )
            for program, name in enumerate(names)
        ]
        self.loop_ns = 0
        self.watch = ServedLoads(lambda: (self.loop_ns, 0))
        self.now = 0
        self.watch.tick(self.models, 0)

    def window(self, requests: int, *, model: int = 0, size: int = 1, rows: int = 1, failed: int = 0) -> None:
        """Five seconds in which so many requests came, in batches of one size, each of which took 2 ms."""
        stats = self.models[model].stats
        for at in range(requests):
            if at % size == 0:
                stats.whole["realtime"].ran(0, "idle", "new", size, (0, 2 * MS, 0))
            stats.call_ran(0, (0, 2 * MS, 0), "", rows)
            stats.call_answered("ok", 3 * MS, "")
        for _ in range(failed):
            stats.call_answered("bad_request", MS, "")
        self.loop_ns += requests * MS
        for _ in range(5):
            self.now += S
            self.watch.tick(self.models, self.now)

    @property
    def rates(self) -> list[float]:
        return [load.rate for load in self.models[0].loads.values()]


def test_a_steady_load_is_counted_between_its_first_and_its_last_window() -> None:
    server = Server("m", "other")
    for requests in (50, 400, 408, 400, 100):
        server.window(requests, size=2)
    (load,) = server.models[0].loads.values()
    assert (load.seconds, load.requests, load.loop_s, load.spread) == (5, 408, pytest.approx(0.408), 0.1)
    assert load.batches == {2: (204, pytest.approx(0.408))}
    assert load.over(server.models[0].profile.batch_ns) == 2
    server.window(3000)
    for _ in range(3):
        server.window(3200)
    assert server.rates == [pytest.approx(81.6), pytest.approx(640, rel=0.05)]


@pytest.mark.parametrize("other", [{"rows": 2}, {"failed": 30}, {"model": 1}])
def test_windows_of_which_nobody_knows_what_cost_what_do_not_count(other: dict[str, int]) -> None:
    server = Server("m", "other")
    for _ in range(6):
        server.window(400)
        server.window(400, **other)
    assert server.rates == []
    few, cell = Server("m"), Server("m", steps=object())
    for _ in range(4):
        few.window(10)
        cell.window(400)
    assert few.rates == cell.rates == []


@virtual
async def test_a_server_keeps_them_with_its_profile_when_it_ends(tmp_path: Path):
    cache = ProfileCache(tmp_path)
    await keep(cache, make_model(), linear(2, 1, 4))
    async with serving(profiles=cache, threads=lambda: (0, 0)) as rig:
        for _ in range(400):
            await rig.ask(1)
            await asyncio.sleep(0.05)
        await rig.engine.stop(rig.served)
        key, (made,) = rig.served.profiled.key, rig.served.profiled.loads.values()
    kept = cache.load(key, 4)
    assert kept is not None
    assert [one["requests"] for one in kept.extra["front"]["served"]["loads"]] == [pytest.approx(made.requests)]


# Invariant: the engine's table is of the programs that serve, from the files alone, and no file is needed.


CALLS, BULK = make_model(name="calls"), make_model(nn.Identity(), name="bulk")


def keep_pair(folder: Path, one: Model, other: Model, *slower: float) -> None:
    """As if the pair had been measured, up to 32 rows of each."""
    key = ProfileKey(one.info.name, architecture_of(one), device_name(FakeDevice(virtual_loop(), 4)), 1)
    times = tuple(PairTime(rows, 32, 100, 100, part) for rows, part in zip((1, 32), slower, strict=True))
    ProfileCache(folder).store_pair(key, Pair(other.info.name, architecture_of(other), times))


def pairs_of(rig: Rig) -> PairSlowdowns:
    """What the scheduler has been given."""
    return rig.engine.scheduler._share.pairs


@virtual
async def test_pairs_of_the_models_that_serve(tmp_path: Path):
    keep_pair(tmp_path, CALLS, BULK, 0.01, 0.013)
    keep_pair(tmp_path, CALLS, CALLS, 0.5, 0.2)
    keep_pair(tmp_path, CALLS, make_model(nn.ReLU(), name="gone"), 0.9, 0.9)
    async with serving(CALLS, BULK, profiles=ProfileCache(tmp_path)) as rig:
        calls, bulk = rig.models
        beside = pairs_of(rig)
        assert beside[calls.program, bulk.program] == 0.013
        assert beside[calls.program, calls.program] == 0.5
        assert (bulk.program, calls.program) not in beside
        assert [one.statistics()["starling"]["beside"] for one in rig.models] == [{"bulk": 0.013, "calls": 0.5}, {}]


@virtual
async def test_a_model_that_comes_and_goes(tmp_path: Path):
    """What others were told stays as it was: a table never changes."""
    keep_pair(tmp_path, CALLS, BULK, 0.01, 0.013)
    async with serving(CALLS, profiles=ProfileCache(tmp_path)) as rig:
        before = pairs_of(rig)
        assert before == {}
        bulk = await rig.engine.start(BULK)
        between = pairs_of(rig)
        assert list(rig.served.profiled.slowdowns) == ["bulk"]
        await rig.engine.stop(bulk)
        assert pairs_of(rig) == {}
        assert rig.served.profiled.slowdowns == {}
        again = await rig.engine.start(BULK)
        assert pairs_of(rig)[rig.served.program, again.program] == 0.013
        assert (rig.served.program, again.program) not in between
        assert before == {}
