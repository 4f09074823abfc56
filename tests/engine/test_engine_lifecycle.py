"""Invariant: a model that goes finishes what it accepted and takes no more, while the others serve on."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fakes import MS, Fate, affine, virtual

from app.contract import Klass, ModelCall, awaited
from app.errors import DeadlineExceeded, NotReady

from .rig import ask, assert_answer, device, ends_of, make_model, rows_of, serving


@virtual
async def test_stop_waits_for_what_was_accepted_and_refuses():
    """Leases that are not submitted yet included; of an idle model it is at once."""
    async with serving(make_model(max_batch=1), make_model(name="idle")) as rig:
        begin = rig.loop.now
        await rig.engine.stop(rig.models.pop())
        assert rig.loop.now == begin
        calls = [rig.ask(10.0), rig.ask(11.0, 12.0)]
        await rig.loop.turn(2)
        with rig.served.lease(ModelCall(1, [rows_of(13.0)])) as lease:
            stopping = rig.loop.create_task(rig.engine.stop(rig.served))
            await rig.loop.turn(2)
            with pytest.raises(NotReady, match="'m' is being unloaded") as refused:
                rig.served.lease(ModelCall(1))
            assert refused.value.retry_after_s == 1
            first, second = await asyncio.gather(*calls)
            assert_answer(first, 10.0)
            assert_answer(second, 11.0, 12.0)
            assert rig.loop.now - begin == 3 * affine(1)
            assert not stopping.done()
            assert_answer(await awaited(lease), 13.0)
        await stopping
        assert rig.engine.snapshot().models == []
        with pytest.raises(NotReady):
            rig.served.admit(1, Klass.REALTIME)


@pytest.mark.parametrize("abort", [False, True])
@virtual
async def test_stop_waits_for_units_nobody_waits_for_until_the_abort(abort: bool):
    async with serving(device=device(4, hangs=True), settles=not abort) as rig:
        call = rig.ask(10.0)
        await rig.loop.turn(2)
        call.cancel()
        stopping = rig.loop.create_task(rig.engine.stop(rig.served))
        await rig.loop.passes(MS)
        assert not stopping.done()
        if abort:
            rig.engine.abort("time is up")
            await stopping
        rig.device.release()  # after the abort nobody waits for it
        await rig.loop.turn(2)
        await stopping


@virtual
async def test_a_deadline_at_the_moment_of_the_abort():
    """The model has gone before the handler of its last call has run: the deadline's drop must not miss it."""
    async with serving(make_model(max_batch=1), device=device(1, hangs=True), settles=False) as rig:
        calls = [rig.ask(10.0), rig.ask(11.0, timeout_us=20_000)]
        await rig.loop.turn(2)
        stopping = rig.loop.create_task(rig.engine.stop(rig.served))
        rig.loop.call_later(0.020, rig.engine.abort, "time is up")
        first, second = await ends_of(*calls)
        assert isinstance(first, NotReady)
        assert isinstance(second, (NotReady, DeadlineExceeded))
        await stopping


@virtual
async def test_replace_without_a_gap():
    async with serving(make_model(max_batch=2), device=device(2, fate=lambda pushed: Fate(5 * MS))) as rig:
        before = [rig.ask(float(i)) for i in range(10, 16)]
        await rig.loop.turn(2)
        new = await rig.engine.start(make_model(lambda x: -x, version="2"))
        stopping = rig.loop.create_task(rig.engine.stop(rig.served))
        rig.models.append(new)
        after = [rig.loop.create_task(ask(new, rows_of(float(i)))) for i in range(20, 26)]
        for i, answer in enumerate(await asyncio.gather(*before), 10):
            assert_answer(answer, float(i))
        for i, answer in enumerate(await asyncio.gather(*after), 20):
            assert np.array_equal(answer.outputs[0], -rows_of(float(i)))
        await stopping
        assert [gauges.stats.version for gauges in rig.engine.snapshot().models] == ["2"]
