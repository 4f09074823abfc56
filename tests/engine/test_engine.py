"""Invariant: a call is answered once, with the outputs of its own rows, whatever travelled with it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from fakes import MS, FakeDevice, Fate, Pushed, affine, virtual, virtual_loop

from app.errors import ModelFailed

from .rig import Affine, X, answers, ask, make_model, rows_of, serving, tensor


@virtual
async def test_one_call_there_and_back():
    async with serving() as rig:
        begin = rig.loop.now
        answer = await rig.ask(7.0)
        assert np.array_equal(answer.outputs[0], answers(rows_of(7.0)))
        assert rig.loop.now - begin == affine(1)
        assert (answer.queue_ns, answer.compute_ns, answer.batch) == (0, affine(1), 1)
        rig.assert_settled()


@virtual
async def test_calls_of_one_turn_share_a_batch():
    async with serving() as rig:
        given = await asyncio.gather(*[rig.ask(float(i)) for i in range(10, 14)])
        assert rig.rows_pushed() == [4]
        assert [answer.batch for answer in given] == [4] * 4
        for i, answer in enumerate(given, 10):
            assert np.array_equal(answer.outputs[0], answers(rows_of(float(i))))
        rig.assert_settled()


@virtual
async def test_calls_that_come_while_the_device_works_form_the_next_batch():
    async with serving() as rig:
        first = rig.ask(10.0)
        await rig.loop.passes(MS // 2)
        rest = [rig.ask(float(i)) for i in range(11, 14)]
        await asyncio.gather(first, *rest)
        assert rig.rows_pushed() == [1, 3]
        assert rest[0].result().queue_ns == affine(1) - MS // 2


@virtual
async def test_what_a_batch_costs_beyond_computing_is_part_of_its_wait_and_is_learnt():
    """Queue and compute add up to the time from arrival to the end of the batch, as simulated."""
    device = FakeDevice(virtual_loop(), 4, handover_ns=MS // 5)
    async with serving(device=device) as rig:
        answer = await rig.ask(7.0)
        assert (answer.queue_ns, answer.compute_ns) == (MS // 5, affine(1))
        for _ in range(300):
            await rig.ask(7.0)
        shown = rig.served.statistics()["starling"]
        assert (shown["handover_ms"], shown["batch_scale"]) == (pytest.approx(0.2, abs=0.001), 1.0)
        asked = rig.ask(8.0)
        await rig.loop.turn(3)
        assert [unit.predicted for unit in rig.engine.scheduler.running] == [pytest.approx(1.3 * MS, abs=MS // 1000)]
        await asked


@virtual
async def test_the_wait_begins_when_the_rows_have_been_written():
    """Not with the arrival, from which a slow client may send its request for long."""
    async with serving() as rig:
        arrived = rig.loop.now
        await rig.loop.passes(50 * MS)
        answer = await rig.ask(7.0, arrived_ns=arrived)
        assert answer.queue_ns == 0


@virtual
async def test_workers_begin_before_the_answers_of_the_last_batch_are_given():
    """And nobody waits for one where there is nothing to answer."""
    async with serving() as rig:
        answered: list[int] = []
        rig.device.let_begin = lambda: answered.append(rig.served.stats.queued.count)
        first = rig.ask(10.0)
        await rig.loop.passes(MS // 2)
        await asyncio.gather(first, rig.ask(11.0), rig.ask(12.0))
        assert rig.rows_pushed() == [1, 2]
        assert answered == [0]


@virtual
async def test_device_has_its_next_work_before_the_answers_of_the_last_are_given():
    async with serving() as rig:
        answered: list[int] = []

        def fate(pushed: Pushed) -> Fate:
            answered.append(rig.served.stats.queued.count)  # counted when an answer is given
            return Fate()

        rig.device.fate = fate
        first = rig.ask(10.0)
        await rig.loop.turn()
        second = rig.ask(11.0)
        await asyncio.gather(first, second)
        assert answered == [0, 0]
        assert rig.served.stats.queued.count == 2


@virtual
async def test_rows_over_several_batches_keep_their_order():
    async with serving(device=FakeDevice(virtual_loop(), 4, 2)) as rig:
        values = [float(i) for i in range(20, 31)]
        answer = await rig.ask(*values)
        assert len(rig.device.pushed) > 2
        assert np.array_equal(answer.outputs[0], answers(rows_of(*values)))
        assert answer.batch == max(rig.rows_pushed())
        rig.assert_settled()


@virtual
async def test_answer_of_several_batches_has_the_times_of_the_slowest_row():
    async with serving() as rig:
        answer = await rig.ask(*[float(i) for i in range(10, 16)])  # batches of 4, then of 2
        assert (answer.queue_ns, answer.compute_ns) == (affine(4), affine(2))


@virtual
async def test_outputs_are_not_the_slots():
    """An identity model returns the slots; a later call in the same slots must not change an earlier answer."""
    async with serving(make_model(lambda x: x, max_queue=1, max_batch=1)) as rig:
        kept = [await rig.ask(float(i)) for i in range(10, 20)]
        for i, answer in enumerate(kept, 10):
            assert np.array_equal(answer.outputs[0], rows_of(float(i)))


@virtual
async def test_answers_of_one_batch_may_be_written_to():
    async with serving() as rig:
        first, second = await asyncio.gather(rig.ask(10.0), rig.ask(11.0))
        first.outputs[0][:] = 0
        assert np.array_equal(second.outputs[0], answers(rows_of(11.0)))


@virtual
async def test_several_models_share_the_device():
    negative = make_model(lambda x: -x, name="negative")
    async with serving(make_model(), negative) as rig:
        one, other = await asyncio.gather(
            ask(rig.models[0], rows_of(10.0, 11.0)), ask(rig.models[1], rows_of(12.0, 13.0, 14.0))
        )
        assert np.array_equal(one.outputs[0], answers(rows_of(10.0, 11.0)))
        assert np.array_equal(other.outputs[0], -rows_of(12.0, 13.0, 14.0))
        assert rig.rows_pushed() == [2, 3]
        rig.assert_settled()


@virtual
async def test_variable_axes_are_cut_back_to_the_calls_own_length():
    ids = tensor("ids", "INT64", ("tokens", 8))
    out = tensor("out", "INT64", ("tokens", 8))
    async with serving(make_model(lambda x: x * 10, [ids], [out])) as rig:

        async def call(length: int) -> np.ndarray:
            with rig.served.lease(1, lengths={"tokens": length}) as lease:
                lease.write(0, np.arange(1, length + 1)[None, :])
                return (await lease.run()).outputs[0]

        for length, values in zip((3, 8, 1), await asyncio.gather(call(3), call(8), call(1)), strict=True):
            assert values.tolist() == [[10 * i for i in range(1, length + 1)]]
        assert rig.rows_pushed() == [3]


@virtual
async def test_rows_of_one_length_over_batches_of_others():
    """A call's rows may run beside longer ones in one batch and alone in the next: padded lengths differ."""
    ids = tensor("ids", "INT64", ("tokens", 8))
    out = tensor("out", "INT64", ("tokens", 8))
    async with serving(make_model(lambda x: x * 10, [ids], [out])) as rig:

        async def call(rows: int, length: int) -> np.ndarray:
            with rig.served.lease(rows, lengths={"tokens": length}) as lease:
                lease.write(0, np.arange(rows * length).reshape(rows, length))
                return (await lease.run()).outputs[0]

        for rows, values in zip((3, 3), await asyncio.gather(call(3, 8), call(3, 2)), strict=True):
            length = values.shape[1]
            assert values.tolist() == (10 * np.arange(rows * length).reshape(rows, length)).tolist()
        assert rig.rows_pushed() == [4, 2]


@virtual
async def test_parameters_reach_the_model_by_row():
    def scaled(x: torch.Tensor, parameters: list[dict]) -> torch.Tensor:
        return x * torch.tensor([float(row.get("by", 1)) for row in parameters])[:, None]

    async with serving(make_model(scaled, takes_parameters=True)) as rig:
        three, none = rig.ask(10.0, 11.0, parameters={"by": 3}), rig.ask(12.0)
        assert np.array_equal((await three).outputs[0], rows_of(10.0, 11.0) * 3)
        assert np.array_equal((await none).outputs[0], rows_of(12.0))
        assert rig.rows_pushed() == [3]
        (again,) = (await rig.ask(13.0)).outputs  # a slot keeps nothing of the call before
        assert np.array_equal(again, rows_of(13.0))


@virtual
async def test_lower_priority_value_goes_first():
    model = Affine()
    async with serving(make_model(model, max_batch=1), device=FakeDevice(virtual_loop(), 1)) as rig:
        first = rig.ask(10.0)
        await rig.loop.turn()
        rest = [rig.ask(11.0, priority=3), rig.ask(12.0), rig.ask(13.0, priority=1)]  # 0 means 2
        await asyncio.gather(first, *rest)
        assert model.batches == [[10.0], [13.0], [12.0], [11.0]]


@virtual
async def test_outputs_of_two_batches_that_do_not_fit_together_fail_the_call():
    """An output axis without a name may have any length, the same in a batch; two batches may then differ."""
    ragged = tensor("y", "FP32", ("y.0", 8))
    model = make_model(lambda x: x.new_ones(len(x), len(x)), [X], [ragged])
    async with serving(model) as rig:
        assert (await rig.ask(10.0, 11.0)).outputs[0].shape == (2, 2)
        with pytest.raises(ModelFailed, match="model 'm': ValueError"):
            await rig.ask(*[float(i) for i in range(10, 15)])
        rig.assert_settled()


# statistics


@virtual
async def test_numbers_of_calls_and_batches():
    async with serving() as rig:
        await asyncio.gather(rig.ask(10.0), rig.ask(11.0, 12.0))
        rig.served.finish("ok", 5 * MS, "realtime")
        rig.served.finish("client_gone", MS, "realtime")
        numbers = rig.served.statistics()
        assert (numbers["inference_count"], numbers["execution_count"]) == (3, 1)
        assert numbers["inference_stats"]["success"] == {"count": 1, "ns": 5 * MS}
        assert numbers["inference_stats"]["fail"] == {"count": 1, "ns": MS}
        assert numbers["inference_stats"]["compute_input"] == {"count": 2, "ns": 2 * (affine(3) // 10)}
        assert numbers["starling"]["batches"] == {"0:idle": 1}
        assert numbers["starling"]["batch_ms"] == {"1": 1.1, "2": 1.2, "3": 1.3, "4": 1.4}


@virtual
async def test_snapshot_shows_what_waits_runs_and_was_busy():
    async with serving(make_model(max_batch=2)) as rig:
        calls = [rig.ask(float(i)) for i in range(10, 15)]
        await rig.loop.turn(2)
        (gauges,) = rig.engine.snapshot().models
        assert (gauges.pending_rows, gauges.pending_calls, gauges.slots_used) == (3, 3, 5)
        await asyncio.gather(*calls)
        assert rig.engine.snapshot().busy_s == [pytest.approx((2 * affine(2) + affine(1)) / 1e9)]


@virtual
async def test_a_call_partly_run_is_not_pending():
    async with serving(make_model(max_batch=2)) as rig:
        call = rig.ask(10.0, 11.0, 12.0)
        await rig.loop.turn(2)
        assert rig.served.reports.gauges().pending_calls == 0
        await call


@virtual
async def test_rows_are_announced_to_the_device_before_the_scheduler_hears_of_them():
    """Ebird counts only inputs whose copy has been enqueued: a unit must not be cut from rows nobody copies."""
    device = FakeDevice(virtual_loop(), 4)
    device.staged = True
    heard: list[str] = []
    device.arrive = lambda executor, slots: heard.append(f"announced {list(slots)}")  # type: ignore[method-assign]
    async with serving(device=device) as rig:
        submit = rig.engine.scheduler.submit
        rig.engine.scheduler.submit = lambda call, now: heard.append("submitted") or submit(call, now)  # type: ignore
        await rig.ask(1.0, 2.0)
    assert heard == ["announced [0, 1]", "submitted"]


@virtual
async def test_whoever_watches_hears_of_each_unit_once_with_its_times():
    """Failed ones too; and nothing any more when it has stopped watching."""
    heard = []

    def hear(unit, outcome, began, ended):
        heard.append((len(unit.rows), outcome.error, ended - began))

    async with serving() as rig:
        await rig.ask(7.0)
        rig.engine.watch(hear)
        await asyncio.gather(rig.ask(8.0), rig.ask(9.0))
        with pytest.raises(ModelFailed):
            await rig.ask(-1.0)
        rig.engine.watch(None)
        await rig.ask(10.0)
    assert heard == [(2, None, affine(2)), (1, "model", affine(1))]


@virtual
async def test_plans_are_those_of_the_models_of_a_snapshot():
    models = [make_model(name=name) for name in ("b", "a")]
    async with serving(*models) as rig:
        plans = rig.engine.plans()
        assert [plan.program for plan in plans] == [served.program for served in rig.models]
        assert [one.stats.model for one in rig.engine.snapshot().models] == ["b", "a"]
        assert plans[0].batch_ns == rig.served.profiled.profile.batch_ns
        assert (plans[0].scale, plans[0].tables, plans[0].level) == (1.0, (), -1)
