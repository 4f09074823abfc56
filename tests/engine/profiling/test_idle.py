"""Invariant: measuring takes no slot from a call, delays none by more than a batch, and ends in the record."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import MS, FakeDevice, Fate, Pushed, affine, virtual, virtual_loop

from app.contract import Model
from app.engine.profiling.cache import ProfileCache
from app.scheduler.estimates.profile import linear
from app.scheduler.record import Entry, RecordingScheduler, feed, scheduler_of, step_entry
from app.scheduler.types import AT_ONCE, Fault

from ..rig import Rig, answers, make_model, rows_of, serving, tensor

BUDGET = 5.0


def measured(rig: Rig) -> list[Pushed]:
    """The units of the profiler."""
    return [pushed for pushed in rig.device.pushed if pushed.job.unit_id < 0]


def origins(rig: Rig) -> list[str]:
    return [served.statistics()["starling"]["profile"]["origin"] for served in rig.models]


async def begun(rig: Rig) -> None:
    """Until the first batch is being measured."""
    rig.engine.profiling.begin()
    while not measured(rig):
        await rig.loop.passes(MS)


async def settled(rig: Rig) -> None:
    """Until nothing is left to measure."""
    while rig.engine.profiling._idle._task is not None:
        await asyncio.wait([rig.engine.profiling._idle._task])
        await rig.loop.turn()


def now_takes(rig: Rig, batch_ns: Callable[[int], int]) -> None:
    """Batches take another time than while warming up."""
    executor: Any = rig.served.executor
    rig.device.batch_ns = executor.batch_ns = batch_ns


def files(folder: Path) -> int:
    """Profiles in the folder; control tables are kept there as well."""
    return len(list(folder.glob("m-*.json")))


def kept_in(folder: Path) -> Any:
    """The one profile that is kept."""
    (path,) = folder.glob("m-*.json")
    return json.loads(path.read_text())


@virtual
async def test_a_kept_profile_that_calls_contradict_is_measured_again(tmp_path: Path):
    cache = ProfileCache(tmp_path)
    async with serving(profiles=cache, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        good = rig.served.profiled.profile
        assert good.errors
        assert rig.served.profiled.key is not None
        times = (good.batch_ns[0], 3 * good.batch_ns[1], *good.batch_ns[2:])
        cache.store(rig.served.profiled.key, replace(good, batch_ns=times))
    async with serving(profiles=cache, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        assert (origins(rig), measured(rig)) == (["cache"], [])
        (live,) = rig.engine.scheduler.live_times(rig.served.program)
        for _ in range(50):
            for size, (kept, true) in enumerate(zip(times, good.batch_ns, strict=True), 1):
                live.observe(size, true / kept / live.factors[size - 1] - 1)
        for _ in range(65):
            await rig.loop.passes(1000 * MS)
        await settled(rig)
        assert (origins(rig), rig.served.profiled.profile.batch_ns) == (["measured"], good.batch_ns)
        assert measured(rig)
    assert kept_in(tmp_path)["batch_ms"]["2"] == good.batch_ns[1] / MS


@virtual
async def test_measured_once_idle_and_kept(tmp_path: Path):
    cache = ProfileCache(tmp_path)
    async with serving(profiles=cache, profile_budget_s=BUDGET) as rig:
        await rig.loop.passes(1000 * MS)
        assert (origins(rig), measured(rig)) == (["warm-up"], [])  # others may still load
        now_takes(rig, lambda size: size * 2 * MS)
        rig.engine.profiling.begin()
        await settled(rig)
        assert origins(rig) == ["measured"]
        assert {pushed.rows for pushed in measured(rig)} == {1, 2, 3, 4}
        assert rig.served.statistics()["starling"]["batch_ms"]["4"] == 8
        assert files(tmp_path) == 1
    async with serving(profiles=cache, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await rig.loop.passes(1000 * MS)
        assert (origins(rig), measured(rig)) == (["cache"], [])


@virtual
async def test_scheduler_predicts_by_what_was_measured():
    device = FakeDevice(virtual_loop(), 4)
    async with serving(device=device, profile_budget_s=BUDGET) as rig:
        now_takes(rig, lambda size: 50 * MS)
        rig.engine.profiling.begin()
        await settled(rig)
        assert rig.served.profiled.profile.batch_ns == (50 * MS,) * 4
        asked = rig.ask(1.0)
        await rig.loop.turn(3)
        assert [unit.predicted for unit in rig.engine.scheduler.running] == [50 * MS]
        await asked


@virtual
async def test_what_a_batch_costs_beyond_computing_is_measured_with_it(tmp_path: Path):
    """And kept with it, shown, predicted, and part of the tables that are solved."""
    device = FakeDevice(virtual_loop(), 4, handover_ns=MS // 4)
    model = make_model(policy="adaptive")
    async with serving(model, device=device, profiles=ProfileCache(tmp_path), profile_budget_s=BUDGET) as rig:
        assert rig.served.statistics()["starling"]["profile"]["handover_ms"] is None
        rig.engine.profiling.begin()
        await settled(rig)
        shown = rig.served.statistics()["starling"]
        assert (shown["batch_ms"]["1"], shown["profile"]["handover_ms"], shown["handover_ms"]) == (1.1, 0.25, 0.25)
        control = rig.engine.scheduler._states[rig.served.program].facts[0].control
        assert control is not None
        assert control.peak == pytest.approx(4e9 / (1.4 * MS + MS / 4))
        asked = rig.ask(1.0)
        await rig.loop.turn(3)
        assert [unit.predicted for unit in rig.engine.scheduler.running] == [1.35 * MS]
        await asked
    assert kept_in(tmp_path)["handover_ms"] == 0.25


@virtual
async def test_a_profile_from_before_it_was_measured_keeps_all_else_that_it_knows(tmp_path: Path):
    cache = ProfileCache(tmp_path)
    async with serving(profiles=cache, profile_budget_s=BUDGET) as rig:
        key = rig.served.profiled.key
        assert key is not None
        cache.store(key, replace(linear(7, 1, 4), extra={"made": "2026-01-01", "suggested": {"threads": 1}}))
    for visits in (15, 0):  # one size an octave, five times each, and never again
        device = FakeDevice(virtual_loop(), 4, handover_ns=MS // 4)
        async with serving(device=device, profiles=cache, profile_budget_s=BUDGET) as rig:
            rig.engine.profiling.begin()
            await settled(rig)
            known = rig.served.profiled
            assert known.profile.extra["made"] == "2026-01-01"
            assert (known.origin, known.profile.handover_ns) == (
                "cache",
                MS // 4,
            )
            assert (known.profile.batch_ns, known.profile.extra["suggested"]) == (
                linear(7, 1, 4).batch_ns,
                {"threads": 1},
            )
            assert rig.engine.scheduler.handover_ns(rig.served.program) == MS // 4
            assert len(measured(rig)) == visits


@virtual
async def test_batches_begun_together_say_nothing_of_it():
    device = FakeDevice(virtual_loop(), 4, 4, handover_ns=MS // 4)
    async with serving(device=device, profile_budget_s=BUDGET) as rig:
        begin = rig.loop.now
        single = await rig.engine.profiling.measuring.measure(rig.served.executor, [(0, rig.served.profiled.spare[:1])])
        assert [one.handover_ns for one in single] == [MS // 4]
        assert rig.loop.now - begin == affine(1) + MS // 4
        spare = rig.served.profiled.spare
        both = await rig.engine.profiling.measuring.measure(rig.served.executor, [(0, spare[:1]), (1, spare[4:6])])
        assert [one.completion.worker for one in both] == [0, 1]


@virtual
async def test_without_a_budget_nothing_is_measured(tmp_path: Path):
    async with serving(profiles=ProfileCache(tmp_path)) as rig:
        rig.engine.profiling.begin()
        await rig.loop.passes(10_000 * MS)
        assert (origins(rig), rig.device.pushed, files(tmp_path)) == (["warm-up"], [], 0)


@virtual
async def test_a_call_waits_for_one_batch_at_most():
    async with serving(profile_budget_s=BUDGET) as rig:
        await begun(rig)
        assert measured(rig)[-1].ended is None
        first = len(measured(rig))
        asked = [rig.ask(float(value)) for value in range(2, 8)]
        results = await asyncio.gather(*asked)
        assert len(measured(rig)) == first
        live = [pushed for pushed in rig.device.pushed if pushed.job.unit_id >= 0]
        assert live[0].at == measured(rig)[-1].ended  # the device itself refuses a second unit before
        for value, result in zip(range(2, 8), results, strict=True):
            assert (result.outputs[0] == answers(rows_of(float(value)))).all()
        await settled(rig)
        assert origins(rig) == ["measured"]
        rig.assert_settled()


@virtual
async def test_nothing_is_measured_while_calls_are_there_nor_just_after():
    async with serving(profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        for _ in range(50):  # a busy client, with short pauses
            await rig.ask(2.0)
            await rig.loop.passes(20 * MS)
        assert measured(rig) == []
        await settled(rig)
        first = measured(rig)[0]
        assert first.at - max(pushed.ended or 0 for pushed in rig.device.pushed if pushed.job.unit_id >= 0) >= 50 * MS


@virtual
async def test_measuring_goes_on_after_a_unit_was_withdrawn():
    ahead = {"push_depth": 2, "push_ahead_ns": AT_ONCE, "withdraws": True}
    device = FakeDevice(virtual_loop(), 1, batch_ns=lambda size: 5 * MS, **ahead)
    async with serving(make_model(max_batch=1), device=device, profile_budget_s=BUDGET) as rig:
        calls = [rig.ask(float(row), klass="best_effort") for row in range(2)]
        await rig.loop.turn(2)
        calls.append(rig.ask(2.0))
        await asyncio.gather(*calls)
        assert len(device.withdrawn) == 1
        await begun(rig)


@virtual
async def test_a_unit_kept_back_while_its_worker_is_measured_can_be_withdrawn():
    ahead = {"push_depth": 2, "push_ahead_ns": AT_ONCE, "withdraws": True}
    device = FakeDevice(virtual_loop(), 1, batch_ns=lambda size: 5 * MS, **ahead)
    async with serving(make_model(max_batch=1), device=device, profile_budget_s=BUDGET) as rig:
        await begun(rig)
        calls = [rig.ask(float(row), klass="best_effort") for row in range(2)]
        await rig.loop.turn(2)
        calls.append(rig.ask(2.0))
        await asyncio.gather(*calls)
        live = [pushed.job.best_effort for pushed in device.pushed if pushed.job.unit_id >= 0]
        assert live == [True, False, True]  # the second never reached the device, its row ran behind the real-time one


@virtual
async def test_a_long_batch_waits_for_a_longer_silence():
    device = FakeDevice(virtual_loop(), 2, batch_ns=lambda size: (10, 100)[size - 1] * MS)
    async with serving(make_model(max_batch=2), device=device, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        for _ in range(100):
            await rig.ask(2.0)
            await rig.loop.passes(150 * MS)
        assert {pushed.rows for pushed in measured(rig)} <= {1}
        await settled(rig)
        assert {pushed.rows for pushed in measured(rig)} == {1, 2}
        ends = [pushed.ended or 0 for pushed in rig.device.pushed if pushed.job.unit_id >= 0]
        first = next(pushed for pushed in measured(rig) if pushed.rows == 2)
        assert first.at - max(ends) >= 400 * MS


@virtual
async def test_no_call_is_ever_given_a_slot_to_measure_with():
    async with serving(make_model(max_queue=8), profile_budget_s=BUDGET) as rig:
        spare = rig.served.profiled.spare
        pool = rig.served.pool
        assert len(spare) == 4
        assert not set(pool.take(pool.free)) & set(spare)
        rig.engine.profiling.begin()
        await settled(rig)
        assert {slot for pushed in measured(rig) for slot in pushed.job.slots} == set(spare)


@virtual
async def test_several_units_at_once_are_measured_on_several_workers():
    device = FakeDevice(virtual_loop(), 4, 4)
    async with serving(device=device, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        known = rig.served.profiled
        assert set(known.profile.concurrency_ns) == {2}
        assert rig.served.profiled.is_complete(device.spec)
        pairs = [(one, two) for one in measured(rig) for two in measured(rig) if (one.at, two.at) == (two.at, one.at)]
        together = [(one, two) for one, two in pairs if one.worker < two.worker]
        assert together
        assert all(not set(one.job.slots) & set(two.job.slots) for one, two in together)
        assert set(rig.served.statistics()["starling"]["profile"]["concurrency_ms"]) == {"2"}


@virtual
async def test_workers_too_small_for_the_largest_batch_measure_nothing_at_once():
    device = FakeDevice(virtual_loop(), 1, 4)
    async with serving(device=device, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        assert {pushed.worker for pushed in measured(rig)} == {1}
        assert rig.served.profiled.profile.concurrency_ns == {}


@pytest.mark.parametrize(("budget_s", "most_sizes"), [(0.25, 16), (0.1, 8), (0.05, 5)])
def test_the_budget_is_kept_by_measuring_fewer_sizes(budget_s: float, most_sizes: int):
    @virtual
    async def run() -> None:
        device = FakeDevice(virtual_loop(), 16)  # 1.1 to 2.6 ms, 29.6 ms for each size once
        async with serving(make_model(max_batch=16), device=device, profile_budget_s=budget_s) as rig:
            rig.engine.profiling.begin()
            await settled(rig)
            took = sum((pushed.ended or 0) - pushed.at for pushed in measured(rig))
            assert took <= budget_s * 1e9 + 3 * MS
            assert len({pushed.rows for pushed in measured(rig)}) <= most_sizes
            assert {1, 16} <= {pushed.rows for pushed in measured(rig)}
            assert rig.served.profiled.profile.max_batch == 16

    run()


@virtual
async def test_batches_that_would_delay_a_call_too_long_keep_the_curve_of_warm_up():
    device = FakeDevice(virtual_loop(), 4, batch_ns=lambda size: (100, 300, 600, 900)[size - 1] * MS)
    async with serving(device=device, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        assert {pushed.rows for pushed in measured(rig)} == {1, 2}
        assert rig.served.profiled.profile.batch_ns == (100 * MS, 300 * MS, 600 * MS, 900 * MS)
    device = FakeDevice(virtual_loop(), 4, batch_ns=lambda size: 2000 * MS)
    async with serving(device=device, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        assert (origins(rig), measured(rig)) == (["warm-up"], [])


@virtual
async def test_models_are_measured_one_after_the_other_and_one_that_goes_is_not():
    models = [make_model(name=name) for name in ("a", "b", "c")]
    async with serving(*models, profile_budget_s=BUDGET) as rig:
        await begun(rig)
        await rig.engine.stop(rig.models[0])  # in the middle
        await rig.engine.stop(rig.models[2])  # not begun
        await settled(rig)
        assert origins(rig)[1] == "measured"
        assert [served.profiled.origin for served in rig.models] == ["warm-up", "measured", "warm-up"]
        assert [pushed.job.executor for pushed in measured(rig)].count(rig.models[0].executor) == 1
        late = await rig.engine.start(make_model(name="d"))
        await settled(rig)
        assert late.statistics()["starling"]["profile"]["origin"] == "measured"


@virtual
async def test_a_model_that_fails_keeps_its_profile(caplog: pytest.LogCaptureFixture):
    device = FakeDevice(virtual_loop(), 4, fate=lambda pushed: Fate(fault=Fault.MODEL if pushed.rows == 3 else None))
    async with serving(device=device, profile_budget_s=BUDGET) as rig:
        with caplog.at_level(logging.WARNING):
            rig.engine.profiling.begin()
            await settled(rig)
        assert origins(rig) == ["warm-up"]
        assert "model m: its profile is not measured: as told" in caplog.text


@virtual
async def test_a_worker_that_dies_is_lost_as_under_a_call():
    device = FakeDevice(virtual_loop(), 4, fate=lambda pushed: Fate(fault=Fault.DEVICE))
    lost: list[str] = []
    async with serving(device=device, profile_budget_s=BUDGET, on_lost=lost.append) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        assert rig.engine.stuck() is not None
        assert len(lost) == 1
        assert len(measured(rig)) == 1


@virtual
async def test_stopping_ends_it():
    async with serving(profile_budget_s=BUDGET) as rig:
        await begun(rig)
    assert rig.engine.profiling._idle._task is None


@virtual
async def test_what_was_measured_replays():
    entries: list[Entry] = []
    device = FakeDevice(virtual_loop(), 4)
    scheduler = RecordingScheduler(device.spec, sink=entries.append)
    async with serving(device=device, scheduler=scheduler, profile_budget_s=BUDGET) as rig:
        now_takes(rig, lambda size: 9 * MS)
        rig.engine.profiling.begin()
        await rig.ask(2.0, 3.0)
        await settled(rig)
        await asyncio.gather(*(rig.ask(4.0, timeout_us=30_000) for _ in range(6)), return_exceptions=True)
    assert any(entry.get("in") == "reprofile" for entry in entries)
    again = scheduler_of(entries[0])
    for entry in entries[1:]:
        if "step" in entry:
            assert step_entry(again.step(entry["t"]), entry["t"]) == entry
        else:
            feed(again, entry)


@virtual
async def test_a_device_of_mixed_workers_measures_once(tmp_path: Path):
    """Only one worker takes the largest batch, so nothing is to be measured of several at once."""
    for origin in ("measured", "cache"):
        device = FakeDevice(virtual_loop(), 1, 1, 2, 4)
        model = make_model(policy="ebird")
        async with serving(model, device=device, profiles=ProfileCache(tmp_path), profile_budget_s=BUDGET) as rig:
            rig.engine.profiling.begin()
            await settled(rig)
            assert origins(rig) == [origin]
            assert bool(measured(rig)) == (origin == "measured")


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
        rig.engine.profiling.begin()
        await settled(rig)
        known = rig.served.profiled.profile
        lengths = (4, 8, 16, 32, 64)
        assert known.by_length == tuple((n, tuple(b * n * MS // 16 for b in (1, 2, 3, 4))) for n in lengths)
        assert known.batch_ns == dict(known.by_length)[16]
        assert rig.served.statistics()["starling"]["profile"]["length_ms"]["64"]["4"] == 16
        with rig.served.lease(1, lengths={"tokens": 40}) as lease:
            lease.write(0, np.ones((1, 40), np.int64))
            asked = lease.run()
            await rig.loop.turn(3)
            assert [unit.predicted for unit in rig.engine.scheduler.running] == [2.5 * MS]
            await asked
    async with serving(by_tokens(), profiles=cache, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await rig.loop.passes(1000 * MS)
        assert (origins(rig), measured(rig)) == (["cache"], [])


@virtual
async def test_a_kept_profile_without_lengths_gets_them_and_keeps_the_rest(tmp_path: Path):
    cache = ProfileCache(tmp_path)
    async with serving(by_tokens(), profiles=cache) as rig:
        assert rig.served.profiled.key is not None
        cache.store(
            rig.served.profiled.key, replace(linear(1, 1, 4), extra={"suggested": {"threads": 1}}, handover_ns=MS)
        )
    async with serving(by_tokens(), profiles=cache, profile_budget_s=BUDGET) as rig:
        takes_by_length(rig, lambda size, length: size * length * MS // 16)
        rig.engine.profiling.begin()
        await settled(rig)
        known = rig.served.profiled
        assert (known.origin, known.profile.batch_ns) == ("cache", linear(1, 1, 4).batch_ns)
        assert known.profile.extra["suggested"] == {"threads": 1}
        assert dict(known.profile.by_length)[64][0] == 4 * MS


@virtual
async def test_no_batch_at_a_length_takes_much_longer_than_the_budget_allows():
    """Warm-up ran short rows: what long ones take shows in small batches first."""
    async with serving(by_tokens(), profile_budget_s=BUDGET) as rig:
        takes_by_length(rig, lambda size, length: size * length**2 * MS // 10)
        rig.engine.profiling.begin()
        await settled(rig)
        took = [(pushed.ended or 0) - pushed.at for pushed in measured(rig)]
        assert sum(took) <= (BUDGET + 0.5) * 1e9
        assert max(took) <= 0.5e9
        assert dict(rig.served.profiled.profile.by_length)[16][3] == 4 * 256 * MS // 10


@virtual
async def test_a_length_at_which_the_model_fails_is_left_out():
    def fate(pushed: Pushed) -> Fate:
        long = pushed.job.executor.pool.lengths["tokens"][pushed.job.slots[0]] == 64
        return Fate(fault=Fault.MODEL if long else None)

    async with serving(by_tokens(), device=FakeDevice(virtual_loop(), 4, fate=fate), profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        assert origins(rig) == ["measured"]
        assert [length for length, _ in rig.served.profiled.profile.by_length] == [4, 8, 16, 32]


@virtual
async def test_its_batches_are_counted_and_the_log_says_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture):
    async with serving(profile_budget_s=BUDGET) as rig:
        with caplog.at_level(logging.INFO):
            rig.engine.profiling.begin()
            await settled(rig)
            await rig.ask(2.0)
        done = measured(rig)
        took = sum((pushed.ended or 0) - pushed.at for pushed in done)
        shown = rig.served.statistics()
        assert shown["starling"]["profile"]["idle_batches"] == {"count": len(done), "ns": took}
        assert (shown["execution_count"], shown["inference_count"]) == (1, 1)  # they are in no other figure
        told = [record.getMessage() for record in caplog.records if "measuring" in record.getMessage()]
        assert told == [
            "model m: measuring it while there are no calls, for at most 5 s of batches (--profile-budget-s)",
            f"model m: measuring has ended: {len(done)} batches, which took {took / 1e9:.3g} s",
        ]


@virtual
async def test_a_model_that_is_not_to_be_measured_keeps_all_its_slots(tmp_path: Path):
    model = replace(make_model(name="off"), profile=False)
    async with serving(model, make_model(name="on"), profiles=ProfileCache(tmp_path), profile_budget_s=BUDGET) as rig:
        off, on = rig.models
        rig.engine.profiling.begin()
        await settled(rig)
        assert origins(rig) == ["warm-up", "measured"]
        assert {pushed.job.executor for pushed in measured(rig)} == {on.executor}
        assert (len(off.profiled.spare), off.stats.profiled.count) == (0, 0)
        assert off.pool.free == on.pool.free
