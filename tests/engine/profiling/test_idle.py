"""Invariant: measuring takes no slot from a call, delays none by more than a batch, and ends in the record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import MS, Fate, Pushed, VirtualClock, affine, virtual, virtual_loop

from app.contract import Checks, Model, ModelCall, awaited
from app.engine.profiling.cache import ProfileCache
from app.engine.profiling.measuring import Measuring
from app.scheduler.types import Fault

from ..rig import Rig, assert_answer, device, make_model, serving, tensor

BUDGET = 5.0


def measured(rig: Rig) -> list[Pushed]:
    """The units of the profiler."""
    return [pushed for pushed in rig.device.pushed if pushed.job.unit_id < 0]


def live(rig: Rig) -> list[Pushed]:
    """Those of calls."""
    return [pushed for pushed in rig.device.pushed if pushed.job.unit_id >= 0]


def sizes(rig: Rig) -> set[int]:
    return {pushed.rows for pushed in measured(rig)}


def origins(rig: Rig) -> list[str]:
    return [served.statistics()["starling"]["profile"]["origin"] for served in rig.models]


async def begun(rig: Rig) -> None:
    """Until the first batch is being measured."""
    rig.engine.profiling.begin()
    while not measured(rig):
        await rig.loop.passes(MS)


async def settled(rig: Rig) -> None:
    """Until nothing is left to measure, from now on if that has not begun."""
    rig.engine.profiling.begin()
    while tasks := list(rig.engine.profiling._to_measure.tasks):
        await asyncio.wait(tasks)
        await rig.loop.turn()


@asynccontextmanager
async def measuring(*models: Model, **options: Any) -> AsyncIterator[Rig]:
    """An engine that measures its models from the beginning, until nothing is left to measure."""
    async with serving(*models, **{"profile_budget_s": BUDGET, **options}) as rig:
        await settled(rig)
        yield rig


def now_takes(rig: Rig, batch_ns: Callable[[int], int]) -> None:
    """Batches take another time than while warming up."""
    executor: Any = rig.served.executor
    rig.device.batch_ns = executor.batch_ns = batch_ns


async def predicted(rig: Rig, call: Any) -> list[float]:
    await rig.loop.turn(3)
    found = [unit.forecast.predicted for unit in rig.engine.scheduler.units.values()]
    await call
    return found


def files(folder: Path) -> list[Any]:
    """Profiles in the folder; control tables are kept there as well."""
    return [json.loads(path.read_text()) for path in folder.glob("m-*.json")]


@virtual
async def test_measured_once_idle_kept_and_predicted_by(tmp_path: Path):
    """Not before all models are loaded; and not again by the next server."""
    cache = ProfileCache(tmp_path)
    async with serving(profiles=cache, profile_budget_s=BUDGET) as rig:
        await rig.loop.passes(1000 * MS)
        assert (origins(rig), measured(rig)) == (["warm-up"], [])
        now_takes(rig, lambda size: size * 2 * MS)
        await settled(rig)
        assert (origins(rig), sizes(rig)) == (["measured"], {1, 2, 3, 4})
        assert rig.served.statistics()["starling"]["batch_ms"]["4"] == pytest.approx(8, rel=0.02)
        assert await predicted(rig, rig.ask(1.0)) == [pytest.approx(2 * MS, rel=0.02)]
        assert len(files(tmp_path)) == 1
    async with measuring(profiles=cache) as rig:
        assert (origins(rig), measured(rig)) == (["cache"], [])
    async with measuring(profile_budget_s=0) as rig:
        await rig.loop.passes(10_000 * MS)
        assert (origins(rig), rig.device.pushed) == (["warm-up"], [])


@virtual
async def test_what_calls_show_of_a_kept_profile_is_kept_for_the_next_server(tmp_path: Path):
    cache = ProfileCache(tmp_path)
    async with measuring(profiles=cache) as rig:
        good = rig.served.profiled.profile
        times = (good.batch_ns[0], 3 * good.batch_ns[1], *good.batch_ns[2:])
        cache.store(rig.served.profiled.key, replace(good, batch_ns=times))
    async with measuring(profiles=cache) as rig:
        assert (origins(rig), measured(rig)) == (["cache"], [])
        (curve,) = rig.served.profiled.curves
        for _ in range(200):
            for size, true in enumerate(good.batch_ns, 1):
                curve.observe(size, true)
        await rig.engine.stop(rig.served)
    assert files(tmp_path)[0]["batch_ms"]["2"] == pytest.approx(good.batch_ns[1] / MS, rel=0.05)


@virtual
async def test_what_is_kept_is_no_less_sure_because_no_batches_ran_at_once(tmp_path: Path):
    """In an hour what they cost each other is forgotten, but not what each takes alone."""
    async with measuring(device=device(4, 4), profiles=ProfileCache(tmp_path)) as rig:
        (curve,) = rig.served.profiled.curves
        for _ in range(3600):
            curve.observe(1, curve.predict(1), others=0.0)
            curve.tick()
        assert min(rig.served.profiled.learned().errors) > 0.5
        await rig.engine.stop(rig.served)
    assert max(files(tmp_path)[0]["error"].values()) < 0.05


@virtual
async def test_what_was_never_measured_is_not_kept(tmp_path: Path):
    """The next server would not measure it."""
    async with serving(profiles=ProfileCache(tmp_path)) as rig:
        assert_answer(await rig.ask(1.0), 1.0)
        await rig.engine.stop(rig.served)
    assert files(tmp_path) == []


@virtual
async def test_a_process_without_calls_measures_at_once_and_again(tmp_path: Path):
    """As `starling profile` does: also what is cached, without a silence before each batch."""
    cache = ProfileCache(tmp_path)
    for ms in (1, 3):
        async with serving(profiles=cache, profile_budget_s=60.0) as rig:
            now_takes(rig, lambda size, ms=ms: size * ms * MS)
            begun_at = rig.loop.now
            await rig.engine.profiling.measure_alone(rig.served.profiled)
            assert rig.loop.now - begun_at == sum((one.ended or 0) - one.at for one in measured(rig))
            assert (origins(rig), rig.served.profiled.profile.batch_ns[3]) == (
                ["measured"],
                pytest.approx(4 * ms * MS, rel=0.01),
            )
    assert (files(tmp_path)[0]["batch_ms"]["4"], files(tmp_path)[0]["push_depth"]) == (pytest.approx(12, rel=0.01), 1)


@virtual
async def test_what_a_batch_costs_beyond_computing_is_measured_with_it(tmp_path: Path):
    """And kept with it, shown, predicted, and part of the tables that are solved. Not of batches begun together."""
    model, cache = make_model(policy="adaptive"), ProfileCache(tmp_path)
    async with measuring(model, device=device(4, 4, handover_ns=MS // 4), profiles=cache) as rig:
        shown = rig.served.statistics()["starling"]
        assert (shown["batch_ms"]["1"], shown["profile"]["handover_ms"], shown["handover_ms"]) == (1.1, 0.25, 0.25)
        assert shown["profile"]["fit"]["alpha_ms"] == pytest.approx(1)
        control = rig.engine.scheduler.states[rig.served.program].estimates.control
        assert control.peak == pytest.approx(8e9 / (1.4 * MS + MS / 4), rel=0.1)
        assert await predicted(rig, rig.ask(1.0)) == [1.35 * MS]
        spare, begin = rig.served.profiled.spare, rig.loop.now
        both = await rig.engine.profiling.measuring.measure(rig.served.executor, [(0, spare[:1]), (1, spare[4:6])])
        assert [one.completion.worker for one in both] == [0, 1]
        assert rig.loop.now - begin == affine(2) + MS // 4
    (kept,) = files(tmp_path)
    assert kept["handover_ms"] == 0.25


# beside calls


@virtual
async def test_a_call_waits_for_one_batch_at_most():
    async with serving(profile_budget_s=BUDGET) as rig:
        await begun(rig)
        assert measured(rig)[-1].ended is None
        first = len(measured(rig))
        results = await asyncio.gather(*[rig.ask(float(value)) for value in range(2, 8)])
        assert len(measured(rig)) == first
        assert live(rig)[0].at < (measured(rig)[-1].ended or 0) < (live(rig)[0].ended or 0)
        for value, result in zip(range(2, 8), results, strict=True):
            assert_answer(result, float(value))
        await settled(rig)
        assert origins(rig) == ["measured"]


@virtual
async def test_a_server_may_end_just_as_the_silence_has_been_long_enough():
    loop = virtual_loop()
    waiting = asyncio.create_task(Measuring(device(1), VirtualClock(loop, 1.0)).quiet(MS))
    loop.call_later(MS / 1e9, waiting.cancel)  # set before the timer of the silence, so it rings first
    await asyncio.wait([waiting])
    await loop.turn()
    assert waiting.cancelled()


@pytest.mark.parametrize(
    ("batch_ms", "pause_ms", "quiet_ms", "meanwhile"), [((1, 1), 20, 50, set()), ((10, 100), 150, 400, {1})]
)
@virtual
async def test_a_batch_waits_for_a_silence_several_times_its_own_time(batch_ms, pause_ms, quiet_ms, meanwhile):
    times = device(2, batch_ns=lambda size: batch_ms[size - 1] * MS)
    async with serving(make_model(max_batch=2), device=times, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        for _ in range(50):  # a busy client, with pauses
            await rig.ask(2.0)
            await rig.loop.passes(pause_ms * MS)
        assert sizes(rig) <= meanwhile
        await settled(rig)
        assert sizes(rig) == {1, 2}
        first = next(pushed for pushed in measured(rig) if pushed.rows == 2)
        assert first.at - max(pushed.ended or 0 for pushed in live(rig)) >= quiet_ms * MS


@virtual
async def test_no_call_is_ever_given_a_slot_to_measure_with():
    """A model that is not to be measured keeps all its slots."""
    off = replace(make_model(name="off", max_queue=8), checks=Checks(row_check="off", profile=False))
    async with serving(make_model(max_queue=8), off, profile_budget_s=BUDGET, settles=False) as rig:
        spare, pool = rig.served.profiled.spare, rig.served.pool
        assert (len(spare), len(rig.models[1].profiled.spare), pool.free) == (4, 0, rig.models[1].pool.free)
        assert not set(pool.take(pool.free)) & set(spare)
        await settled(rig)
        assert {slot for pushed in measured(rig) for slot in pushed.job.slots} == set(spare)
        assert {pushed.job.executor for pushed in measured(rig)} == {rig.served.executor}
        assert (origins(rig), sum(rig.models[1].stats.profiled.counts)) == (["measured", "warm-up"], 0)


# what is measured


@pytest.mark.parametrize(("budget_s", "most_sizes"), [(0.25, 16), (0.1, 16), (0.05, 8), (0.03, 5)])
@virtual
async def test_the_budget_is_kept_by_measuring_fewer_sizes(budget_s: float, most_sizes: int):
    sixteen = device(16)  # 1.1 to 2.6 ms, 29.6 ms for each size once
    async with measuring(make_model(max_batch=16), device=sixteen, profile_budget_s=budget_s) as rig:
        assert sum((pushed.ended or 0) - pushed.at for pushed in measured(rig)) <= budget_s * 1e9 + 3 * MS
        assert len(sizes(rig)) <= most_sizes
        assert sizes(rig) >= {1, 16}
        assert rig.served.profiled.profile.max_batch == 16


@pytest.mark.parametrize(("batch_ms", "measures"), [((100, 300, 600, 900), {1, 2}), ((2000, 2000, 2000, 2000), set())])
@virtual
async def test_batches_that_would_delay_a_call_too_long_keep_the_curve_of_warm_up(batch_ms, measures):
    async with measuring(device=device(4, batch_ns=lambda size: batch_ms[size - 1] * MS)) as rig:
        assert sizes(rig) == measures
        assert rig.served.profiled.profile.batch_ns == pytest.approx([ms * MS for ms in batch_ms])


# what goes wrong


@virtual
async def test_models_are_measured_one_after_the_other_and_one_that_goes_is_not():
    async with serving(*(make_model(name=name) for name in "abc"), profile_budget_s=BUDGET) as rig:
        await begun(rig)
        await rig.engine.stop(rig.models[0])  # in the middle
        await rig.engine.stop(rig.models[2])  # not begun
        await settled(rig)
        assert [served.profiled.origin for served in rig.models] == ["warm-up", "measured", "warm-up"]
        assert [pushed.job.executor for pushed in measured(rig)].count(rig.models[0].executor) == 1
        late = await rig.engine.start(make_model(name="d"))
        await settled(rig)
        assert late.profiled.origin == "measured"


@virtual
async def test_a_model_that_fails_keeps_its_profile(caplog: pytest.LogCaptureFixture):
    fails = device(4, fate=lambda pushed: Fate(fault=Fault.MODEL if pushed.rows == 3 else None))
    async with measuring(device=fails) as rig:
        assert origins(rig) == ["warm-up"]
    assert "model m: its profile is not measured: as told" in caplog.text


@virtual
async def test_stopping_ends_it():
    async with serving(profile_budget_s=BUDGET) as rig:
        await begun(rig)
    assert not rig.engine.profiling._to_measure.tasks


# rows of several lengths

IDS = tensor("ids", "INT64", ("tokens", 64))
SCORE = tensor("y", "FP32")


def by_tokens(**options: Any) -> Model:
    return make_model(lambda ids: ids.sum(1).float(), [IDS], [SCORE], **options)


def takes_by_length(rig: Rig, ns: Callable[[int, int], int]) -> None:
    """Batches that are measured take a time by size and length."""
    slot, lengths = rig.served.profiled.spare[0], rig.served.pool.lengths["tokens"]
    now_takes(rig, lambda size: ns(size, int(lengths[slot])))


@virtual
async def test_times_are_measured_for_several_lengths(tmp_path: Path):
    cache = ProfileCache(tmp_path)
    async with serving(by_tokens(), profiles=cache, profile_budget_s=BUDGET) as rig:
        takes_by_length(rig, lambda size, length: size * length * MS // 16)
        await settled(rig)
        profile = rig.served.profiled.profile
        for (n, times), expected in zip(profile.by_length, (4, 8, 16, 32, 64), strict=True):
            assert (n, times) == (expected, pytest.approx([b * n * MS // 16 for b in (1, 2, 3, 4)], rel=0.02))
        assert profile.batch_ns == dict(profile.by_length)[16]
        assert rig.served.statistics()["starling"]["profile"]["length_ms"]["64"]["4"] == pytest.approx(16, rel=0.02)
        with rig.served.lease(ModelCall(1, [np.ones((1, 40), np.int64)], lengths={"tokens": 40})) as lease:
            assert await predicted(rig, awaited(lease)) == [pytest.approx(2.5 * MS, rel=0.02)]
    async with measuring(by_tokens(), profiles=cache) as rig:
        assert (origins(rig), measured(rig)) == (["cache"], [])


@virtual
async def test_a_device_that_dies_at_a_length_is_no_length_to_skip(tmp_path: Path):
    """The next server measures the model again, instead of keeping what lacks most lengths."""

    def fate(pushed: Pushed) -> Fate:
        length = pushed.job.executor.pool.lengths["tokens"][pushed.job.slots[0]]
        return Fate(fault=Fault.DEVICE if length == 8 else None)

    async with measuring(by_tokens(), device=device(4, fate=fate), profiles=ProfileCache(tmp_path)) as rig:
        assert rig.device.dead()
        assert (origins(rig), files(tmp_path)) == (["warm-up"], [])


@virtual
async def test_sizes_have_half_of_the_time_before_lengths_do():
    async with serving(by_tokens(), profile_budget_s=0.12) as rig:
        takes_by_length(rig, lambda size, length: size * length * MS // 16)
        await settled(rig)
        profile = rig.served.profiled.profile
        assert min(profile.extra["repeats"].values()) >= 3
        assert len(profile.by_length) > 1


@virtual
async def test_rows_are_picked_by_guessed_lengths_until_they_are_measured_and_nothing_is_predicted_by_them():
    async with serving(by_tokens(policy="adaptive"), profile_budget_s=0) as rig:
        profile = rig.served.profiled.profile
        assert (origins(rig), profile.batch_ns) == (["warm-up"], dict(profile.by_length)[16])
        (lengths,) = rig.engine.scheduler.states[rig.served.program].estimates.curves.lengths
        assert lengths.at(64).times[0] == profile.batch_ns[3]
        with rig.served.lease(ModelCall(1, [np.ones((1, 64), np.int64)], lengths={"tokens": 64})) as lease:
            assert await predicted(rig, awaited(lease)) == [profile.batch_ns[0]]
