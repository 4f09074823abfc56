"""Invariant: a failure reaches the calls it belongs to and no other, and what cannot be answered is said to be so."""

from __future__ import annotations

import pytest
from fakes import MS, affine, virtual

from app.errors import ModelFailed, NotReady

from .rig import FATAL, HEAVY, POISON, Affine, assert_answer, device, ends_of, make_model, rows_of, serving


@pytest.mark.parametrize(
    ("calls", "error", "pushed"),
    [
        ([[10.0], [11.0], [POISON], [13.0], [14.0]], "failed: ValueError: poisoned", [5, 3, 2, 1, 2]),
        ([[10.0, POISON, 12.0], [13.0]], "failed on row 1: ValueError: poisoned", None),
        ([[HEAVY], [11.0]], "ran out of memory: MemoryError: too heavy", None),
        # Halving n bad rows takes at most 2 n - 1 units.
        ([[POISON]] * 8, "failed: ValueError: poisoned", [8, 4, 2, 1, 1, 2, 1, 1, 4, 2, 1, 1, 2, 1, 1]),
    ],
)
@virtual
async def test_a_bad_row_fails_its_call_alone_and_is_named(calls: list[list[float]], error: str, pushed: list[int]):
    async with serving(device=device(8)) as rig:
        for values, end in zip(calls, await ends_of(*[rig.ask(*values) for values in calls]), strict=True):
            if min(values) < 0:
                assert isinstance(end, ModelFailed)
                assert str(end) == f"model 'm' {error}"
            else:
                assert_answer(end, *values)
        assert pushed is None or rig.rows_pushed() == pushed
        await rig.loop.passes(10 * MS)
        rig.assert_settled()


# a lost device, and the end


@virtual
async def test_lost_device_answers_all_with_503_and_refuses():
    """Also a lease that was taken before; a unit of another worker ends unheard."""
    why: list[str] = []
    async with serving(make_model(max_batch=1), device=device(1, 1), on_lost=why.append) as rig:
        with rig.served.lease(1) as lease:
            calls = [rig.ask(FATAL), rig.ask(11.0), rig.ask(12.0), rig.ask(13.0, timeout_us=1_000_000)]
            for error in await ends_of(*calls):
                assert isinstance(error, NotReady)
                assert str(error) == "the device is lost: worker 0 has died: GeneratorExit: the model asked for it"
                assert error.retry_after_s == 1
            with pytest.raises(NotReady, match="the device is lost"):
                await lease.run()
        assert why == [rig.engine.stuck()] == ["worker 0 has died: GeneratorExit: the model asked for it"]
        with pytest.raises(NotReady, match="the device is lost"):
            rig.served.admit(1)
        await rig.loop.passes(affine(1) + 2_000 * MS)
        assert len(rig.device.pushed) == 2
        rig.assert_settled()


@virtual
async def test_abort_answers_all_and_refuses():
    """Also a lease that runs after it; a second one changes nothing."""
    model = Affine()
    async with serving(make_model(model, max_batch=1), device=device(1, hangs=True)) as rig:
        calls = [rig.ask(10.0), rig.ask(11.0), rig.ask(12.0, timeout_us=5_000_000)]
        await rig.loop.turn(2)
        with rig.served.lease(1) as lease:
            lease.write(0, rows_of(13.0))
            rig.engine.abort("time is up")
            rig.engine.abort("second")
            for error in await ends_of(*calls):
                assert isinstance(error, NotReady)
                assert (str(error), error.retry_after_s) == ("time is up", 1)
            with pytest.raises(NotReady, match="second"):
                await lease.run()
            with pytest.raises(NotReady, match="second"):
                rig.served.lease(1)
        assert rig.served.pool.used == 1  # of the unit that runs
        rig.device.release()
        await rig.loop.turn(2)
        assert (len(rig.device.pushed), model.saw(13.0)) == (1, False)
        rig.assert_settled()


@virtual
async def test_end_of_the_engine_answers_what_is_left():
    hanging = device(4, hangs=True)
    async with serving(device=hanging) as rig:
        call = rig.ask(10.0)
        await rig.loop.turn(2)
    with pytest.raises(NotReady, match="the server has stopped"):
        await call
    assert hanging.closed
