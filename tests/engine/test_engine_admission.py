"""Invariant: what is admitted has its slots; what is not is told why, when to come back, and leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from fakes import HANGS, MS, FakeDevice, affine, virtual, virtual_loop

from app.contract import Answer
from app.errors import DeadlineExceeded, DeadlineUnreachable, NotReady, QueueFull
from app.scheduler.types import AT_ONCE

from .rig import Rig, answers, ask, make_model, rows_of, serving


@asynccontextmanager
async def busy(batch_ns: int, max_queue: int) -> AsyncIterator[tuple[Rig, list[asyncio.Task[Answer]]]]:
    """An engine whose only worker, of one row, runs a call; that call, in a list."""
    device = FakeDevice(virtual_loop(), 1, batch_ns=lambda size: batch_ns)
    async with serving(make_model(max_batch=1, max_queue=max_queue), device=device) as rig:
        calls = [rig.ask(10.0)]
        await rig.loop.turn(2)
        yield rig, calls


@virtual
async def test_full_queue_refuses_with_a_hint_from_the_backlog():
    async with busy(1_500 * MS, max_queue=2) as (rig, calls):
        calls += [rig.ask(11.0), rig.ask(12.0)]
        await rig.loop.turn(2)
        with pytest.raises(QueueFull, match="'m': the queue of 2 rows is full") as refused:
            rig.served.lease(1)
        assert refused.value.retry_after_s == 5  # three batches of 1.5 s
        await asyncio.gather(*calls)
        rig.assert_settled()


@virtual
async def test_hint_is_at_least_a_second():
    async with serving(make_model(max_queue=2)) as rig:
        with pytest.raises(QueueFull) as refused:
            rig.served.lease(3)
        assert refused.value.retry_after_s == 1


@virtual
async def test_rows_leased_and_not_submitted_count():
    async with serving(make_model(max_queue=4)) as rig:
        with rig.served.lease(3):
            with pytest.raises(QueueFull):
                rig.served.admit(2)
            rig.served.lease(1).close()
        rig.served.admit(4)
        rig.assert_settled()


@virtual
async def test_unreachable_deadline_is_refused_at_once():
    device = FakeDevice(virtual_loop(), 1, batch_ns=lambda size: 2_000 * MS)
    async with serving(make_model(max_batch=1), device=device) as rig:
        running = rig.ask(10.0)
        await rig.loop.turn(2)
        with pytest.raises(DeadlineUnreachable, match="after the call's deadline") as refused:
            rig.served.lease(1, timeout_us=3_999_999)
        assert refused.value.retry_after_s == 2
        in_time = rig.ask(11.0, timeout_us=4_100_000)
        await asyncio.gather(running, in_time)


@virtual
async def test_refused_calls_leave_nothing():
    async with serving(make_model(max_queue=1)) as rig:
        with pytest.raises(QueueFull):
            rig.served.lease(2)
        rig.assert_settled()


@virtual
async def test_pool_holds_all_that_is_admitted_and_all_that_runs():
    """The queue is full, the workers are full: every row that was admitted has its slot."""
    device = FakeDevice(virtual_loop(), 2, 2, push_depth=2, push_ahead_ns=AT_ONCE, fate=lambda pushed: HANGS)
    async with serving(make_model(max_batch=2, max_queue=3), device=device) as rig:
        calls = []
        for rows in (2, 2, 2, 2, 1, 1, 1):  # 2 workers x depth 2 x 2 rows, and 3 that wait
            calls.append(rig.ask(*[10.0] * rows))
            await rig.loop.turn(2)
        assert rig.served.pool.used == 11
        with pytest.raises(QueueFull):
            rig.served.lease(1)
        for _ in range(3):
            device.release(0)
            device.release(1)
            await rig.loop.turn(2)
        await asyncio.gather(*calls)
        rig.assert_settled()


@virtual
async def test_pool_holds_the_ended_rows_of_a_call_whose_other_rows_wait():
    """What admission counts as free is free: rows that have run hold nothing, though their call waits for others."""
    async with serving(make_model(max_batch=1, max_queue=4), device=FakeDevice(virtual_loop(), 1)) as rig:
        long = rig.ask(10.0, 11.0, 12.0, 13.0)
        await rig.loop.passes(2 * affine(1) + MS // 2)  # two have ended, one runs, one waits
        assert rig.engine.scheduler.waiting(rig.served.program) == 1
        more = rig.ask(20.0, 21.0, 22.0)
        assert np.array_equal((await long).outputs[0], answers(rows_of(10.0, 11.0, 12.0, 13.0)))
        assert np.array_equal((await more).outputs[0], answers(rows_of(20.0, 21.0, 22.0)))
        rig.assert_settled()


@virtual
async def test_admission_in_the_turn_in_which_the_queue_was_dropped():
    """The dropped calls' handlers have not run yet, so their slots are not free yet: refused at most, never broken."""
    outcomes: list[str] = []
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: HANGS)
    async with serving(make_model(max_batch=1, max_queue=2), device=device) as rig:

        def come() -> None:
            try:
                rig.served.lease(2).close()
            except QueueFull:
                outcomes.append("refused")
            else:
                outcomes.append("taken")

        running = rig.ask(10.0)
        await rig.loop.turn(2)
        waiting = rig.loop.create_task(ask(rig.served, rows_of(11.0, 12.0), timeout_us=20_000))
        await rig.loop.turn(2)
        rig.loop.call_later(0.020, come)  # after the engine's own timer of the same time
        with pytest.raises(DeadlineExceeded):
            await waiting
        await rig.loop.turn(2)
        assert len(outcomes) == 1
        device.release()
        await running
        rig.assert_settled()


@virtual
async def test_what_is_refused_is_part_of_the_arrival_rate():
    """For a full queue and for a deadline; a model that takes no calls at all has no rate."""
    async with busy(20_000 * MS, max_queue=1) as (rig, calls):
        calls.append(rig.ask(11.0))
        await rig.loop.turn(2)
        for _ in range(5):
            with pytest.raises(QueueFull):
                rig.served.lease(1)
        rig.engine.driver.intake.refusing = "no more"
        with pytest.raises(NotReady):
            rig.served.lease(1)
        rig.engine.driver.intake.refusing = None
        await rig.loop.passes(1_000 * MS)
        assert rig.engine.scheduler.rate(rig.served.program) == pytest.approx(7)
        await asyncio.gather(*calls)
        with pytest.raises(DeadlineUnreachable):
            rig.served.lease(1, timeout_us=1)
        await rig.loop.passes(1_000 * MS)
        assert rig.engine.scheduler.rate(rig.served.program) == pytest.approx(1)


@virtual
async def test_a_deadline_is_held_against_what_goes_before_the_call():
    """One row runs for 20 ms more and nine of priority 2 wait: a call of priority 1 is next, one of 2 is the last."""
    async with busy(20 * MS, max_queue=16) as (rig, calls):
        calls += [rig.ask(float(value), priority=2) for value in range(11, 20)]
        await rig.loop.turn(2)
        with pytest.raises(DeadlineUnreachable):
            rig.served.lease(1, priority=2, timeout_us=50_000)
        urgent = rig.ask(30.0, priority=1, timeout_us=50_000)
        assert np.array_equal((await urgent).outputs[0], answers(rows_of(30.0)))
        assert not calls[-1].done()
        await asyncio.gather(*calls)
        rig.assert_settled()
