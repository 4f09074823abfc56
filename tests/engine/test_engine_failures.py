"""Invariant: a failure reaches the calls it belongs to and no other, and what cannot be answered is said to be so."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fakes import HANGS, MS, FakeDevice, Fate, Pushed, affine, virtual, virtual_loop

from app.errors import ModelFailed, NotReady
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Fault

from .rig import FATAL, HEAVY, POISON, Affine, answers, make_model, rows_of, serving


@virtual
async def test_one_bad_row_fails_alone():
    async with serving(device=FakeDevice(virtual_loop(), 8)) as rig:
        values = [10.0, 11.0, POISON, 13.0, 14.0]
        given = await asyncio.gather(*[rig.ask(value) for value in values], return_exceptions=True)
        for value, answer in zip(values, given, strict=True):
            if value == POISON:
                assert isinstance(answer, ModelFailed)
                assert str(answer) == "model 'm' failed: ValueError: poisoned"
            else:
                assert np.array_equal(answer.outputs[0], answers(rows_of(value)))
        assert rig.rows_pushed() == [5, 3, 2, 1, 2]
        rig.assert_settled()


@virtual
async def test_the_message_names_the_row_of_a_call_of_several():
    async with serving() as rig:
        with pytest.raises(ModelFailed) as failed:
            await rig.ask(10.0, POISON, 12.0)
        assert str(failed.value) == "model 'm' failed on row 1: ValueError: poisoned"
        await rig.loop.passes(10 * MS)
        rig.assert_settled()


@virtual
async def test_first_row_of_several_is_named_too():
    async with serving() as rig:
        with pytest.raises(ModelFailed, match="failed on row 0"):
            await rig.ask(POISON, 11.0)
        await rig.loop.passes(10 * MS)
        rig.assert_settled()


@virtual
async def test_rows_that_ran_again_keep_their_place():
    """A call whose rows end in other batches, in another order, than they were submitted."""
    async with serving(device=FakeDevice(virtual_loop(), 4, 2)) as rig:
        values = [float(i) for i in range(20, 29)]
        good, bad = rig.ask(*values), rig.ask(POISON)
        assert np.array_equal((await good).outputs[0], answers(rows_of(*values)))
        with pytest.raises(ModelFailed):
            await bad
        rig.assert_settled()


@virtual
async def test_retries_are_bounded():
    """Halving n bad rows takes at most 2 n - 1 units."""
    async with serving(device=FakeDevice(virtual_loop(), 8)) as rig:
        calls = [rig.ask(POISON) for _ in range(8)]
        assert all(isinstance(e, ModelFailed) for e in await asyncio.gather(*calls, return_exceptions=True))
        assert len(rig.device.pushed) == 15
        rig.assert_settled()


@virtual
async def test_a_broken_model_fails_whole_units_and_recovers():
    broken = True

    def fate(pushed: Pushed) -> Fate:
        return Fate(MS, Fault.MODEL if broken else None)

    async with serving(device=FakeDevice(virtual_loop(), 4, fate=fate)) as rig:
        for _ in range(16):
            with pytest.raises(ModelFailed):
                await rig.ask(10.0)
        before = len(rig.device.pushed)
        failed = await asyncio.gather(*[rig.ask(10.0) for _ in range(4)], return_exceptions=True)
        assert all(str(error) == "model 'm' failed: as told" for error in failed)
        assert len(rig.device.pushed) == before + 1
        broken = False
        assert np.array_equal((await rig.ask(10.0)).outputs[0], answers(rows_of(10.0)))
        rig.assert_settled()


@virtual
async def test_without_splitting_all_of_a_unit_fail():
    device = FakeDevice(virtual_loop(), 4)
    async with serving(device=device, scheduler=Scheduler(device.spec, split_failed=False)) as rig:
        given = await asyncio.gather(rig.ask(10.0), rig.ask(POISON), return_exceptions=True)
        assert [type(answer) for answer in given] == [ModelFailed, ModelFailed]
        assert rig.rows_pushed() == [2]
        rig.assert_settled()


@virtual
async def test_out_of_memory_halves_and_is_remembered():
    def fate(pushed: Pushed) -> Fate:
        return Fate(MS, Fault.OOM if pushed.job.size > 2 else None)

    async with serving(device=FakeDevice(virtual_loop(), 8, fate=fate)) as rig:
        values = [float(i) for i in range(10, 18)]
        assert np.array_equal((await rig.ask(*values)).outputs[0], answers(rows_of(*values)))
        assert rig.rows_pushed() == [8, 4, 2, 2, 2, 2]
        assert np.array_equal((await rig.ask(*values)).outputs[0], answers(rows_of(*values)))
        assert rig.rows_pushed()[6:] == [2, 2, 2, 2]
        rig.assert_settled()


@virtual
async def test_a_row_too_heavy_alone_fails():
    async with serving() as rig:
        heavy, other = rig.ask(HEAVY), rig.ask(11.0)
        with pytest.raises(ModelFailed, match="model 'm' ran out of memory: MemoryError: too heavy"):
            await heavy
        assert np.array_equal((await other).outputs[0], answers(rows_of(11.0)))
        rig.assert_settled()


@virtual
async def test_wrong_output_while_serving_is_the_models_failure():
    short = make_model(lambda x: x[: 0 if x[0, 0] == 13 else len(x)])
    async with serving(short) as rig:
        with pytest.raises(ModelFailed, match=r"output 'y': expected a batch of 1 rows"):
            await rig.ask(13.0, 13.0)
        assert np.array_equal((await rig.ask(10.0)).outputs[0], rows_of(10.0))
        await rig.loop.passes(10 * MS)
        rig.assert_settled()


@virtual
async def test_failed_call_with_a_row_elsewhere():
    """One row of a call fails alone on one worker while another row of it runs on: answered now, freed when it ends."""

    def fate(pushed: Pushed) -> Fate:
        return Fate(MS, Fault.MODEL) if pushed.worker == 0 else Fate(20 * MS)

    async with serving(make_model(max_batch=1), device=FakeDevice(virtual_loop(), 1, 1, fate=fate)) as rig:
        with pytest.raises(ModelFailed, match="on row 0"):
            await rig.ask(10.0, 11.0, 12.0)
        assert rig.served.pool.used == 1  # the row that runs on
        await rig.loop.passes(20 * MS)
        assert rig.rows_pushed() == [1, 1]
        rig.assert_settled()


# a lost device


@virtual
async def test_lost_device_answers_all_with_503_and_refuses():
    told: list[str] = []
    model = Affine()
    async with serving(make_model(model), device=FakeDevice(virtual_loop(), 1), on_lost=told.append) as rig:
        calls = [rig.ask(FATAL), rig.ask(11.0), rig.ask(12.0, timeout_us=1_000_000)]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, NotReady)
            assert str(error) == "the device is lost: worker 0 has died: GeneratorExit: the model asked for it"
            assert error.retry_after_s == 1
        assert told == ["worker 0 has died: GeneratorExit: the model asked for it"]
        assert rig.engine.stuck() == told[0]
        with pytest.raises(NotReady, match="the device is lost"):
            rig.served.admit(1)
        await rig.loop.passes(2_000 * MS)
        assert len(rig.device.pushed) == 1
        rig.assert_settled()


@virtual
async def test_lease_taken_before_the_device_was_lost():
    async with serving() as rig:
        with rig.served.lease(1) as lease:
            with pytest.raises(NotReady):
                await rig.ask(FATAL)
            with pytest.raises(NotReady, match="the device is lost"):
                await lease.run()
        rig.assert_settled()


@virtual
async def test_units_of_other_workers_end_unheard_after_the_loss():
    async with serving(make_model(max_batch=1), device=FakeDevice(virtual_loop(), 1, 1)) as rig:
        calls = [rig.ask(FATAL), rig.ask(11.0)]
        await rig.loop.passes(affine(1) + MS)
        assert all(isinstance(e, NotReady) for e in await asyncio.gather(*calls, return_exceptions=True))
        rig.assert_settled()


# abort


@virtual
async def test_abort_answers_all_and_refuses():
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: HANGS)
    async with serving(make_model(max_batch=1), device=device) as rig:
        calls = [rig.ask(10.0), rig.ask(11.0), rig.ask(12.0, timeout_us=5_000_000)]
        await rig.loop.turn(2)
        rig.engine.abort("time is up")
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, NotReady)
            assert (str(error), error.retry_after_s) == ("time is up", 1)
        with pytest.raises(NotReady, match="time is up"):
            rig.served.lease(1)
        assert rig.served.pool.used == 1  # of the unit that runs
        device.release()
        await rig.loop.turn(2)
        assert len(device.pushed) == 1
        rig.assert_settled()


@virtual
async def test_abort_twice_is_harmless():
    async with serving(device=FakeDevice(virtual_loop(), 1, fate=lambda pushed: Fate(5 * MS))) as rig:
        call = rig.ask(10.0)
        await rig.loop.turn(2)
        rig.engine.abort("first")
        rig.engine.abort("second")
        with pytest.raises(NotReady, match="first"):
            await call
        await rig.loop.passes(10 * MS)
        rig.assert_settled()


@virtual
async def test_lease_that_runs_after_the_abort_is_answered_too():
    model = Affine()
    async with serving(make_model(model)) as rig:
        with rig.served.lease(1) as lease:
            lease.write(0, rows_of(10.0))
            rig.engine.abort("time is up")
            with pytest.raises(NotReady, match="time is up"):
                await lease.run()
        await rig.loop.passes(10 * MS)
        assert model.batches == []
        rig.assert_settled()


@virtual
async def test_end_of_the_engine_answers_what_is_left():
    device = FakeDevice(virtual_loop(), 4, fate=lambda pushed: HANGS)
    async with serving(device=device) as rig:
        call = rig.ask(10.0)
        await rig.loop.turn(2)
    with pytest.raises(NotReady, match="the server has stopped"):
        await call
    assert device.closed
