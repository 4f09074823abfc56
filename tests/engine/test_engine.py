"""A call is answered once, with the outputs of its own rows; a failure reaches the calls it belongs to and no other."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from fakes import MS, Fate, affine, virtual

from app.contract import Klass, ModelCall, awaited
from app.errors import DeadlineExceeded, ModelFailed, NotReady

from .rig import (
    FATAL,
    HEAVY,
    POISON,
    Affine,
    X,
    ask,
    assert_answer,
    device,
    ends_of,
    make_model,
    rows_of,
    serving,
    strict,
    tensor,
)

# Invariant: a call is answered once, with the outputs of its own rows, whatever travelled with it.


@virtual
async def test_calls_of_one_turn_share_a_batch_and_those_that_come_while_it_runs_the_next():
    async with serving() as rig:
        begin = rig.loop.now
        first = [rig.ask(10.0), rig.ask(11.0)]
        await rig.loop.passes(MS // 2)
        rest = [rig.ask(12.0), rig.ask(13.0), rig.ask(14.0)]
        given = await asyncio.gather(*first, *rest)
        assert rig.rows_pushed() == [2, 3]
        assert rig.loop.now - begin == affine(2) + affine(3)
        for value, answer in enumerate(given, 10):
            assert_answer(answer, float(value))
        assert (given[0].queue_ns, sum(given[0].times), given[0].batch) == (0, affine(2), 2)
        assert (given[2].queue_ns, sum(given[2].times), given[2].batch) == (affine(2) - MS // 2, affine(3), 3)


@virtual
async def test_answer_of_several_batches_has_the_times_of_the_slowest_row():
    async with serving() as rig:
        values = [float(i) for i in range(10, 16)]
        answer = await rig.ask(*values)
        assert_answer(answer, *values)
        assert rig.rows_pushed() == [4, 2]
        assert (answer.queue_ns, sum(answer.times), answer.batch) == (affine(4), affine(2), 4)
        assert (answer.batches, answer.worker, answer.reason) == (2, 0, "idle")  # the rest, when nothing else ran
        one, *_ = await asyncio.gather(*(rig.ask(10.0) for _ in range(4)))
        assert (one.batches, one.worker, one.reason) == (1, 0, "full")


@virtual
async def test_parameters_reach_the_model_by_row():
    """As they came, also where a failed batch has changed them; and nothing is left in the slot."""

    def scaled(x: torch.Tensor, parameters: list[dict]) -> torch.Tensor:
        factors = torch.tensor([row["by"].pop() if row else 1.0 for row in parameters])
        return strict(x) * factors[:, None]

    async with serving(make_model(scaled, takes_parameters=True)) as rig:
        three, none, failed = await ends_of(
            rig.ask(10.0, 11.0, parameters={"by": [3.0]}), rig.ask(12.0), rig.ask(POISON)
        )
        assert np.array_equal(three.outputs[0], rows_of(10.0, 11.0) * 3)
        assert np.array_equal(none.outputs[0], rows_of(12.0))
        assert isinstance(failed, ModelFailed)
        assert rig.rows_pushed() == [4, 2, 2, 1, 1]
        assert np.array_equal((await rig.ask(13.0)).outputs[0], rows_of(13.0))


@virtual
async def test_outputs_of_two_batches_that_do_not_fit_together_fail_the_call():
    """An output axis without a name may have any length, the same in a batch; two batches may then differ."""
    ragged = tensor("y", "FP32", ("y.0", 8))
    async with serving(make_model(lambda x: x.new_ones(len(x), len(x)), [X], [ragged])) as rig:
        assert (await rig.ask(10.0, 11.0)).outputs[0].shape == (2, 2)
        with pytest.raises(ModelFailed, match="model 'm': the outputs of its rows have different lengths"):
            await rig.ask(*[float(i) for i in range(10, 15)])


@virtual
async def test_rows_are_announced_to_the_device_before_the_scheduler_gets_them():
    """Ebird counts only inputs whose copy has been enqueued: a unit must not be cut from rows nobody copies."""
    staged = device(4)
    staged.staged = True
    log: list[str] = []
    staged.arrive = lambda executor, slots: log.append(f"announced {list(slots)}")  # type: ignore[method-assign]
    async with serving(device=staged) as rig:
        submit = rig.engine.scheduler.submit
        rig.engine.scheduler.submit = lambda call, now: log.append("submitted") or submit(call, now)  # type: ignore
        await rig.ask(1.0, 2.0)
        await rig.ask(3.0, klass=Klass.BEST_EFFORT)  # or its copy would go before those of real-time calls
    assert log == ["announced [0, 1]", "submitted", "submitted"]


# numbers


@virtual
async def test_snapshot_shows_what_waits_runs_and_was_busy():
    """A call of which one row has run is not pending."""
    async with serving(make_model(max_batch=2)) as rig:
        calls = [rig.ask(10.0), rig.ask(11.0, 12.0), rig.ask(13.0), rig.ask(14.0)]
        await rig.loop.turn(2)
        (gauges,) = rig.engine.snapshot().models
        assert (sum(gauges.waiting.values()), gauges.pending_calls, gauges.slots_used) == (3, 2, 5)
        await asyncio.gather(*calls)
        assert rig.engine.snapshot().busy_s == [pytest.approx((2 * affine(2) + affine(1)) / 1e9)]


@pytest.mark.parametrize(("ms", "after"), [(10.0, [8, 16]), (1.0, [8, 58])])
@virtual
async def test_the_memory_is_looked_at_after_a_few_units_and_not_often(ms: float, after: list[int]):
    looked: list[int] = []
    async with serving(device=device(4, ms=ms), look=lambda: looked.append(len(rig.device.pushed))) as rig:
        for number in range(60):
            await rig.ask(float(number))
    assert looked[:2] == after


@virtual
async def test_a_watcher_gets_each_unit_once_with_its_times():
    """Failed ones too; and nothing any more when it has stopped watching."""
    units = []
    async with serving() as rig:
        await rig.ask(7.0)
        rig.engine.watch(lambda unit, outcome, began, end: units.append((len(unit.rows), outcome.error, end - began)))
        await asyncio.gather(rig.ask(8.0), rig.ask(9.0))
        with pytest.raises(ModelFailed):
            await rig.ask(-1.0)
        rig.engine.watch(None)
        await rig.ask(10.0)
    assert units == [(2, None, affine(2)), (1, "model", affine(1))]


# Invariant: a failure reaches the calls it belongs to and no other, and what cannot be answered is said to be so.


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


# a lost device, and the end


@virtual
async def test_lost_device_answers_all_with_503_and_refuses():
    """Also a lease that was taken before; a unit of another worker ends unheard."""
    why: list[str] = []
    async with serving(make_model(max_batch=1), device=device(1, 1), on_lost=why.append) as rig:
        with rig.served.lease(ModelCall(1)) as lease:
            calls = [rig.ask(FATAL), rig.ask(11.0), rig.ask(12.0), rig.ask(13.0, timeout_us=1_000_000)]
            for error in await ends_of(*calls):
                assert isinstance(error, NotReady)
                assert str(error) == "the device is lost: worker 0 has died: GeneratorExit: the model asked for it"
                assert error.retry_after_s == 1
            with pytest.raises(NotReady, match="the device is lost"):
                await awaited(lease)
        assert why == [rig.engine.stuck()] == ["worker 0 has died: GeneratorExit: the model asked for it"]
        with pytest.raises(NotReady, match="the device is lost"):
            rig.served.admit(1, Klass.REALTIME)
        await rig.loop.passes(affine(1) + 2_000 * MS)
        assert len(rig.device.pushed) == 2


@virtual
async def test_abort_answers_all_and_refuses():
    """Also a lease that runs after it; a second one changes nothing."""
    model = Affine()
    async with serving(make_model(model, max_batch=1), device=device(1, hangs=True)) as rig:
        calls = [rig.ask(10.0), rig.ask(11.0), rig.ask(12.0, timeout_us=5_000_000)]
        await rig.loop.turn(2)
        with rig.served.lease(ModelCall(1, [rows_of(13.0)])) as lease:
            rig.engine.abort("time is up")
            rig.engine.abort("second")
            for error in await ends_of(*calls):
                assert isinstance(error, NotReady)
                assert (str(error), error.retry_after_s) == ("time is up", 1)
            with pytest.raises(NotReady, match="second"):
                await awaited(lease)
            with pytest.raises(NotReady, match="second"):
                rig.served.lease(ModelCall(1))
        assert rig.served.pool.used == 1  # of the unit that runs
        rig.device.release()
        await rig.loop.turn(2)
        assert (len(rig.device.pushed), model.saw(13.0)) == (1, False)


@virtual
async def test_end_of_the_engine_answers_what_is_left_and_nothing_ticks_after_it(caplog: pytest.LogCaptureFixture):
    hanging = device(4, hangs=True)
    async with serving(device=hanging, settles=False) as rig:
        call = rig.ask(10.0)
        await rig.loop.turn(2)
    with pytest.raises(NotReady, match="the server has stopped"):
        await call
    assert hanging.closed
    assert "a worker did not end within" in caplog.text
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Invariant: a model that goes finishes what it accepted and takes no more, while the others serve on.


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
        assert [gauges.stats.version for gauges in rig.engine.snapshot().models] == ["1", "2"]
        stopping = rig.loop.create_task(rig.engine.stop(rig.served))
        rig.models.append(new)
        await rig.loop.turn(2)
        assert [gauges.stats.version for gauges in rig.engine.snapshot().models] == ["2", "1"]
        after = [rig.loop.create_task(ask(new, rows_of(float(i)))) for i in range(20, 26)]
        for i, answer in enumerate(await asyncio.gather(*before), 10):
            assert_answer(answer, float(i))
        for i, answer in enumerate(await asyncio.gather(*after), 20):
            assert np.array_equal(answer.outputs[0], -rows_of(float(i)))
        await stopping
        assert [gauges.stats.version for gauges in rig.engine.snapshot().models] == ["2"]
