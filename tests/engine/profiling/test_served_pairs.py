"""Invariant: the engine's table is of the programs that serve, from the files alone, and no file is needed."""

from __future__ import annotations

from pathlib import Path

from fakes import FakeDevice, virtual, virtual_loop
from torch import nn

from app.contract import Model
from app.engine.profiling.cache import Key, ProfileCache, architecture_of, device_name
from app.scheduler.estimates.pairs import Pair, PairSlowdowns, PairTime

from ..rig import Rig, make_model, serving

CALLS, BULK = make_model(name="calls"), make_model(nn.Identity(), name="bulk")


def keep(folder: Path, one: Model, other: Model, *slower: float) -> None:
    """As if the pair had been measured, up to 32 rows of each."""
    key = Key(one.info.name, architecture_of(one), device_name(FakeDevice(virtual_loop(), 4)), 1)
    times = tuple(PairTime(rows, 32, 100, 100, part) for rows, part in zip((1, 32), slower, strict=True))
    ProfileCache(folder).store_pair(key, Pair(other.info.name, architecture_of(other), times))


def pairs_of(rig: Rig) -> PairSlowdowns:
    """What the scheduler has been given."""
    return rig.engine.scheduler._dispatch.gate.pairs


@virtual
async def test_pairs_of_the_models_that_serve(tmp_path: Path):
    keep(tmp_path, CALLS, BULK, 0.01, 0.013)
    keep(tmp_path, CALLS, CALLS, 0.5, 0.2)
    keep(tmp_path, CALLS, make_model(nn.ReLU(), name="gone"), 0.9, 0.9)
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
    keep(tmp_path, CALLS, BULK, 0.01, 0.013)
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
