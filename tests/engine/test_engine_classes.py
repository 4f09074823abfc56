"""Both classes on one engine: queues and slots of their own, the model's default, and what is told of each."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fakes import MS, FakeDevice, virtual, virtual_loop

from app.contract import CLASSES, Answer
from app.errors import DeadlineUnreachable, QueueFull
from app.scheduler.types import AT_ONCE, Klass

from .rig import Rig, answers, make_model, rows_of, serving

REAL, BEST = CLASSES


def device(*capacities: int, batch_ms: int = 20) -> FakeDevice:
    return FakeDevice(virtual_loop(), *capacities, batch_ns=lambda size: batch_ms * MS)


async def begun(rig: Rig, *values: float, klass: str = "", **options: int) -> list[asyncio.Task[Answer]]:
    """A call of one row for each of these, admitted."""
    calls = [rig.ask(value, klass=klass, **options) for value in values]
    await rig.loop.turn(2)
    return calls


def test_names_are_in_the_order_of_the_classes() -> None:
    assert [CLASSES[klass] for klass in Klass] == [klass.name.lower() for klass in Klass]


@virtual
async def test_a_flood_of_best_effort_calls_refuses_no_real_time_call() -> None:
    """Both queues full beside what runs: each call has its slot."""
    async with serving(make_model(max_batch=1, max_queue=3), device=device(1)) as rig:
        calls = await begun(rig, 0.0, klass=BEST)
        calls += await begun(rig, 1.0, 2.0, 3.0, klass=BEST)
        with pytest.raises(QueueFull, match="'m': the best-effort queue of 3 rows is full") as refused:
            rig.served.lease(1, klass=BEST)
        assert refused.value.retry_after_s == 1
        assert [rig.served.has_room(klass) for klass in CLASSES] == [True, False]
        calls += await begun(rig, 4.0, 5.0, 6.0)
        with pytest.raises(QueueFull, match="'m': the queue of 3 rows is full"):
            rig.served.admit(1)
        assert rig.served.pool.used == 7
        done = await asyncio.gather(*calls)
        for value, answer in zip(range(7), done, strict=True):
            np.testing.assert_array_equal(answer.outputs[0], answers(rows_of(float(value))))
        rig.assert_settled()


@virtual
async def test_real_time_rows_go_first_and_share_no_batch() -> None:
    async with serving(make_model(max_batch=4), device=device(4, batch_ms=5)) as rig:
        first = await begun(rig, 0.0, klass=BEST)
        rest = await begun(rig, 1.0, 2.0, klass=BEST)
        fast = await begun(rig, 3.0)
        await asyncio.gather(*first, *fast)
        assert not any(call.done() for call in rest)
        await asyncio.gather(*rest)
        assert rig.rows_pushed() == [1, 1, 2]
        rig.assert_settled()


@virtual
async def test_rows_leased_and_not_submitted_count_with_their_class() -> None:
    async with serving(make_model(max_queue=4)) as rig:
        with rig.served.lease(3, klass=BEST):
            assert rig.served.reserved == [0, 3]
            with pytest.raises(QueueFull):
                rig.served.admit(2, BEST)
            rig.served.admit(4)
        rig.assert_settled()


@virtual
async def test_best_effort_work_costs_a_real_time_call_no_deadline() -> None:
    async with serving(make_model(max_batch=1), device=device(1, batch_ms=50)) as rig:
        calls = await begun(rig, 0.0, 1.0, 2.0, klass=BEST)
        rig.served.lease(1, timeout_us=60_000).close()
        await asyncio.gather(*calls)
        rig.assert_settled()


@virtual
async def test_a_best_effort_call_counts_what_goes_before_it() -> None:
    async with serving(make_model(max_batch=1), device=device(1, batch_ms=50)) as rig:
        calls = await begun(rig, 0.0, 1.0)
        with pytest.raises(DeadlineUnreachable):
            rig.served.lease(1, klass=BEST, timeout_us=120_000)
        await asyncio.gather(*calls)
        rig.assert_settled()


@virtual
async def test_what_stands_behind_a_best_effort_batch_is_taken_back() -> None:
    """The real-time call goes in its place, and the rows that were taken back are answered all the same."""
    ahead = {"push_depth": 2, "push_ahead_ns": AT_ONCE, "withdraws": True}
    fake = FakeDevice(virtual_loop(), 1, batch_ns=lambda size: 5 * MS, **ahead)
    async with serving(make_model(max_batch=1), device=fake) as rig:
        calls = await begun(rig, 0.0, 1.0, klass=BEST)
        assert len(fake.pushed) == 2
        fast = await begun(rig, 2.0)
        assert [pushed.job.best_effort for pushed in fake.withdrawn] == [True]
        await asyncio.gather(*fast)
        assert not calls[1].done()
        done = await asyncio.gather(*calls)
        for value, answer in zip(range(2), done, strict=True):
            np.testing.assert_array_equal(answer.outputs[0], answers(rows_of(float(value))))
        assert [pushed.job.best_effort for pushed in fake.pushed] == [True, True, False, True]
        rig.assert_settled()


@virtual
async def test_a_batch_that_has_begun_is_not_taken_back() -> None:
    ahead = {"push_depth": 2, "push_ahead_ns": AT_ONCE, "withdraws": True}
    fake = FakeDevice(virtual_loop(), 1, batch_ns=lambda size: 5 * MS, **ahead)
    async with serving(make_model(max_batch=1), device=fake) as rig:
        calls = await begun(rig, 0.0, 1.0, klass=BEST)
        assert all(pushed.job.claim() for pushed in fake.pushed)  # both have begun, as far as anybody can tell
        calls += await begun(rig, 2.0)
        await asyncio.gather(*calls)
        assert (len(fake.withdrawn), len(fake.pushed)) == (0, 3)
        rig.assert_settled()


@virtual
async def test_slots_of_a_call_that_left_are_freed_when_its_unit_is_withdrawn() -> None:
    """Its row runs, as far as anybody can tell, when the caller leaves: only the withdrawal ends it."""
    ahead = {"push_depth": 2, "push_ahead_ns": AT_ONCE, "withdraws": True}
    fake = FakeDevice(virtual_loop(), 1, batch_ns=lambda size: 5 * MS, **ahead)
    async with serving(make_model(max_batch=1), device=fake) as rig:
        calls = await begun(rig, 0.0, 1.0, klass=BEST)
        calls[1].cancel()
        await rig.loop.turn()
        calls += await begun(rig, 2.0)
        assert len(fake.withdrawn) == 1
        await asyncio.gather(*calls, return_exceptions=True)
        assert rig.served.pool.used == 0
        await rig.engine.stop(rig.served)  # returns when no slot is in use


@virtual
async def test_a_model_has_a_default_class() -> None:
    async with serving(make_model(max_batch=1, default_class=BEST), device=device(1)) as rig:
        calls = await begun(rig, 0.0, 1.0)
        calls += await begun(rig, 2.0, klass=REAL)
        scheduler, program = rig.engine.scheduler, rig.served.program
        assert [scheduler.waiting(program, klass) for klass in Klass] == [1, 1]
        await asyncio.gather(*calls)
        assert list(rig.served.stats.calls) == [BEST, REAL]
        rig.assert_settled()


@virtual
async def test_how_long_the_oldest_has_waited_is_told() -> None:
    async with serving(make_model(max_batch=1), device=device(1, batch_ms=20)) as rig:
        assert list(rig.served.statistics()["starling"]["classes"]) == [REAL]
        calls = await begun(rig, 0.0)
        arrived = rig.engine.clock()
        calls += await begun(rig, 1.0, 2.0, klass=BEST)
        await calls[0]
        calls += await begun(rig, 3.0)  # the first of best effort runs now
        waited = rig.engine.clock() - arrived
        told = rig.served.statistics()["starling"]["classes"]
        assert (told[BEST]["queue_length"], told[REAL]["queue_length"]) == (1, 1)
        assert told[BEST]["oldest_ms"] == pytest.approx(waited / 1e6)
        assert waited >= 20 * MS
        await asyncio.gather(*calls)
        told = rig.served.statistics()["starling"]["classes"]
        assert (told[BEST]["oldest_ms"], told[BEST]["queue"]["count"], told[REAL]["queue"]["count"]) == (0, 2, 2)
