"""Invariant: a call is answered once, with the outputs of its own rows, whatever travelled with it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import MS, Fate, Pushed, affine, virtual

from app.errors import ModelFailed
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import ClassSpec

from .rig import Affine, X, assert_answer, device, make_model, rows_of, serving, tensor


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
        rig.assert_settled()


@virtual
async def test_what_a_batch_costs_beyond_computing_is_part_of_its_wait_and_is_learnt():
    """Queue and compute add up to the time from arrival to the end of the batch, as simulated."""
    async with serving(device=device(4, handover_ns=MS // 5)) as rig:
        answer = await rig.ask(7.0)
        assert (answer.queue_ns, sum(answer.times)) == (MS // 5, affine(1))
        for _ in range(300):
            await rig.ask(7.0)
        shown = rig.served.statistics()["starling"]
        assert (shown["handover_ms"], shown["batch_scale"]) == (pytest.approx(0.2, abs=0.001), 1.0)
        call = rig.ask(8.0)
        await rig.loop.turn(3)
        assert [unit.predicted for unit in rig.engine.scheduler.running] == [pytest.approx(1.3 * MS, abs=MS // 1000)]
        await call


@virtual
async def test_the_wait_begins_when_the_rows_have_been_written():
    """Not with the arrival, from which a slow client may send its request for long."""
    async with serving() as rig:
        arrived = rig.loop.now
        await rig.loop.passes(50 * MS)
        assert (await rig.ask(7.0, arrived_ns=arrived)).queue_ns == 0


@virtual
async def test_the_device_has_its_next_work_before_the_answers_of_the_last_are_given():
    """And the loop lets it begin, where there is something to answer."""
    async with serving() as rig:
        log: list[tuple[str, int]] = []  # with the number of answers given by then

        def fate(pushed: Pushed) -> Fate:
            log.append(("push", rig.served.stats.queued.count))
            return Fate()

        rig.device.fate = fate
        rig.device.let_begin = lambda: log.append(("begin", rig.served.stats.queued.count))
        first = rig.ask(10.0)
        await rig.loop.turn()
        await asyncio.gather(first, rig.ask(11.0))
        assert log == [("push", 0), ("push", 0), ("begin", 0)]
        assert rig.served.stats.queued.count == 2


@virtual
async def test_answer_of_several_batches_has_the_times_of_the_slowest_row():
    async with serving() as rig:
        values = [float(i) for i in range(10, 16)]
        answer = await rig.ask(*values)
        assert_answer(answer, *values)
        assert rig.rows_pushed() == [4, 2]
        assert (answer.queue_ns, sum(answer.times), answer.batch) == (affine(4), affine(2), 4)


@virtual
async def test_outputs_are_the_callers_own():
    """An identity model returns the slots: neither a later call nor a neighbour that writes changes an answer."""
    async with serving(make_model(lambda x: x, max_queue=2, max_batch=2)) as rig:
        kept = []
        for value in range(10, 20):
            spoilt, answer = await asyncio.gather(rig.ask(1.0), rig.ask(float(value)))
            spoilt.outputs[0][:] = 0
            kept.append(answer)
        for value, answer in enumerate(kept, 10):
            assert np.array_equal(answer.outputs[0], rows_of(float(value)))


@pytest.mark.parametrize("calls", [[(1, 3), (1, 8), (1, 1)], [(3, 8), (3, 2)]])  # rows, length
@virtual
async def test_variable_axes_are_cut_back_to_the_calls_own_length(calls: list[tuple[int, int]]):
    """A call's rows may run beside longer ones in one batch and alone in the next: padded lengths differ."""
    ids, out = tensor("ids", "INT64", ("tokens", 8)), tensor("out", "INT64", ("tokens", 8))
    async with serving(make_model(lambda x: x * 10, [ids], [out])) as rig:

        async def call(rows: int, length: int) -> None:
            values = np.arange(rows * length).reshape(rows, length)
            with rig.served.lease(rows, lengths={"tokens": length}) as lease:
                lease.write(0, values)
                assert (await lease.run()).outputs[0].tolist() == (10 * values).tolist()

        await asyncio.gather(*(call(*one) for one in calls))
        assert rig.rows_pushed() == ([3] if len(calls) == 3 else [4, 2])


@virtual
async def test_parameters_reach_the_model_by_row():
    def scaled(x: torch.Tensor, parameters: list[dict]) -> torch.Tensor:
        return x * torch.tensor([float(row.get("by", 1)) for row in parameters])[:, None]

    async with serving(make_model(scaled, takes_parameters=True)) as rig:
        three, none = await asyncio.gather(rig.ask(10.0, 11.0, parameters={"by": 3}), rig.ask(12.0))
        assert np.array_equal(three.outputs[0], rows_of(10.0, 11.0) * 3)
        assert np.array_equal(none.outputs[0], rows_of(12.0))
        assert rig.rows_pushed() == [3]
        assert np.array_equal((await rig.ask(13.0)).outputs[0], rows_of(13.0))  # nothing is left in the slot


@virtual
async def test_lower_priority_value_goes_first():
    model = Affine()
    async with serving(make_model(model, max_batch=1), device=device(1)) as rig:
        first = rig.ask(10.0)
        await rig.loop.turn()
        rest = [rig.ask(11.0, priority=3), rig.ask(12.0), rig.ask(13.0, priority=1)]  # 0 means 2
        await asyncio.gather(first, *rest)
        assert model.batches == [[10.0], [13.0], [12.0], [11.0]]


@virtual
async def test_outputs_of_two_batches_that_do_not_fit_together_fail_the_call():
    """An output axis without a name may have any length, the same in a batch; two batches may then differ."""
    ragged = tensor("y", "FP32", ("y.0", 8))
    async with serving(make_model(lambda x: x.new_ones(len(x), len(x)), [X], [ragged])) as rig:
        assert (await rig.ask(10.0, 11.0)).outputs[0].shape == (2, 2)
        with pytest.raises(ModelFailed, match="model 'm': ValueError"):
            await rig.ask(*[float(i) for i in range(10, 15)])
        rig.assert_settled()


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
    assert log == ["announced [0, 1]", "submitted"]


# numbers


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
    """A call of which one row has run is not pending."""
    async with serving(make_model(max_batch=2)) as rig:
        calls = [rig.ask(10.0), rig.ask(11.0, 12.0), rig.ask(13.0), rig.ask(14.0)]
        await rig.loop.turn(2)
        (gauges,) = rig.engine.snapshot().models
        assert (gauges.pending_rows, gauges.pending_calls, gauges.slots_used) == (3, 2, 5)
        await asyncio.gather(*calls)
        assert rig.engine.snapshot().busy_s == [pytest.approx((2 * affine(2) + affine(1)) / 1e9)]


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


@virtual
async def test_plans_are_those_of_the_models_of_a_snapshot():
    async with serving(make_model(name="b"), make_model(name="a")) as rig:
        plans = rig.engine.plans()
        assert [plan.program for plan in plans] == [served.program for served in rig.models]
        assert [one.stats.model for one in rig.engine.snapshot().models] == ["b", "a"]
        assert plans[0].batch_ns == rig.served.profiled.profile.batch_ns
        assert (plans[0].scale, plans[0].tables, plans[0].level) == (1.0, (), -1)


@virtual
async def test_stages_are_advised_once_and_only_where_there_is_best_effort(caplog: pytest.LogCaptureFixture):
    one = device(4)
    scheduler = Scheduler(replace(one.spec, classes=ClassSpec(budget_ns=1)))
    with caplog.at_level(logging.INFO, "starling.engine"):
        async with serving(device=one, scheduler=scheduler) as rig:
            for klass, advised in (("realtime", 0), ("best_effort", 1), ("best_effort", 1)):
                rig.served.finish("ok", 1, klass)
                await rig.loop.passes(1000 * MS)
                assert sum("--preempt-budget-ms" in message for message in caplog.messages) == advised
