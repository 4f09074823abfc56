"""Invariant: a client that goes frees what it held, but never a slot that a unit reads, and disturbs nobody else."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import HANGS, MS, FakeDevice, affine, virtual, virtual_loop

from app.contract import TensorSpec
from app.engine.lease import check_range
from app.errors import BadRequest, ClientGone

from .rig import Affine, answers, make_model, rows_of, serving, tensor


@virtual
async def test_client_gone_while_waiting_never_runs():
    model = Affine()
    async with serving(make_model(model, max_batch=1)) as rig:
        running = rig.ask(10.0)
        await rig.loop.turn(2)
        with rig.served.lease(1) as lease:
            lease.write(0, rows_of(11.0))
            waiting = lease.run()
            await rig.loop.turn(2)
            lease.cancel()
            with pytest.raises(ClientGone):
                await waiting
        assert rig.served.pool.used == 1
        await running
        await rig.loop.passes(10 * MS)
        assert not model.saw(11.0)
        rig.assert_settled()


@virtual
async def test_client_gone_while_running_keeps_its_slot_until_the_unit_ends():
    device = FakeDevice(virtual_loop(), 4, fate=lambda pushed: HANGS)
    async with serving(device=device) as rig:
        stays = rig.ask(10.0)
        with rig.served.lease(2) as lease:
            lease.write(0, rows_of(11.0, 12.0))
            goes = lease.run()
            await rig.loop.turn(2)
            lease.cancel()
            with pytest.raises(ClientGone):
                await goes
        assert rig.served.pool.used == 3
        device.release()
        assert np.array_equal((await stays).outputs[0], answers(rows_of(10.0)))
        rig.assert_settled()


@pytest.mark.parametrize("running", [True, False])
@virtual
async def test_cancelled_task_leaves(running: bool):
    async with serving(make_model(max_batch=1)) as rig:
        first = rig.ask(10.0)
        await rig.loop.turn(2)
        second = rig.ask(11.0)
        await rig.loop.turn(2)
        gone, stays = (first, second) if running else (second, first)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await stays
        assert rig.rows_pushed() == ([1, 1] if running else [1])
        rig.assert_settled()


@virtual
async def test_cancelled_task_partly_run():
    model = Affine()
    async with serving(make_model(model, max_batch=2)) as rig:
        task = rig.ask(*[float(i) for i in range(10, 16)])
        await rig.loop.passes(affine(2) + MS)  # one batch has ended, one runs, one waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rig.served.pool.used > 0
        await rig.loop.passes(10 * MS)
        assert model.batches == [[10.0, 11.0], [12.0, 13.0]]
        rig.assert_settled()


@virtual
async def test_lease_that_was_never_run_gives_its_slots_back():
    async with serving() as rig:
        with pytest.raises(ValueError, match="broadcast"), rig.served.lease(2) as lease:
            lease.write(0, np.zeros((2, 3), np.float32))
        rig.assert_settled()


@virtual
async def test_lease_closed_twice_gives_its_slots_back_once():
    async with serving() as rig:
        lease = rig.served.lease(2)
        other = rig.served.lease(1)
        lease.close()
        lease.close()
        assert rig.served.pool.used == 1
        other.close()
        rig.assert_settled()


@virtual
async def test_cancel_after_the_answer_changes_nothing():
    async with serving() as rig:
        with rig.served.lease(1) as lease:
            lease.write(0, rows_of(10.0))
            answer = await lease.run()
            lease.cancel()
        assert np.array_equal(answer.outputs[0], answers(rows_of(10.0)))
        rig.assert_settled()


IDS = replace(tensor("ids", "INT32", ("n", 4)), minimum=2, maximum=9)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (IDS, 10, "input 'ids': expected values from 2 to 9, got 10"),
        (IDS, 1, "input 'ids': expected values from 2 to 9, got 1"),
        (replace(IDS, maximum=None), -7, "input 'ids': expected values of at least 2, got -7"),
        (replace(IDS, minimum=None), 99, "input 'ids': expected values of at most 9, got 99"),
    ],
)
@virtual
async def test_a_value_out_of_range_never_reaches_the_model(spec: TensorSpec, value: int, message: str):
    """As an array and as bytes; its slots are free again, and the rows beside it are answered."""
    seen: list[int] = []

    def call(ids: torch.Tensor) -> torch.Tensor:
        seen.extend(ids.flatten().tolist())
        return ids.sum(1, keepdim=True)

    async with serving(make_model(call, [spec], [tensor("sum", "INT64", 1)])) as rig:
        rows = np.array([[3, 4], [5, value]], np.int32)
        for sent in (rows, memoryview(rows.tobytes())):
            with rig.served.lease(2, lengths={"n": 2}) as lease, pytest.raises(BadRequest, match=re.escape(message)):
                lease.write(0, sent)
        assert rig.served.pool.used == 0
        with rig.served.lease(2, lengths={"n": 2}) as lease:
            lease.write(0, memoryview(np.array([[3, 4], [5, 9]], np.int32).tobytes()))
            assert (await lease.run()).outputs[0].tolist() == [[7], [14]]
        assert value not in seen
        rig.assert_settled()


def test_bounds_say_nothing_of_no_values():
    empty = replace(tensor("ids", "INT32", ("n", 4)), minimum=2, maximum=9)
    check_range(empty, np.zeros((1, 0), np.int32))
    check_range(empty, memoryview(b""))
