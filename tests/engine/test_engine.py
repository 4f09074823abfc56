"""Invariant: a call is answered once, with the outputs of its own rows, whatever travelled with it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from fakes import MS, affine, virtual

from app.errors import ModelFailed

from .rig import X, assert_answer, device, make_model, rows_of, serving, tensor


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
async def test_answer_of_several_batches_has_the_times_of_the_slowest_row():
    async with serving() as rig:
        values = [float(i) for i in range(10, 16)]
        answer = await rig.ask(*values)
        assert_answer(answer, *values)
        assert rig.rows_pushed() == [4, 2]
        assert (answer.queue_ns, sum(answer.times), answer.batch) == (affine(4), affine(2), 4)


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
