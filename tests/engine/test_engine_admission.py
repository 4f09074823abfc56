"""Invariant: what is admitted has its slots; what is not is told why, when to come back, and leaves nothing.

Both classes have queues and slots of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fakes import MS, virtual

from app.contract import CLASSES, Answer
from app.errors import DeadlineUnreachable, NotReady, QueueFull
from app.scheduler.types import AT_ONCE, Klass

from .rig import Rig, assert_answer, device, make_model, serving

REAL, BEST = CLASSES


@asynccontextmanager
async def busy(ms: int, klass: str = "", **batching: object) -> AsyncIterator[tuple[Rig, list[asyncio.Task[Answer]]]]:
    """An engine whose only worker, of one row, runs a call of one row for 0; that call, in a list that is awaited."""
    async with serving(make_model(max_batch=1, **batching), device=device(1, ms=ms)) as rig:
        calls = await begun(rig, 0.0, klass=klass)
        yield rig, calls
        for value, answer in enumerate(await asyncio.gather(*calls)):
            assert_answer(answer, float(value))
        rig.assert_settled()


async def begun(rig: Rig, *values: float, klass: str = "", **options: int) -> list[asyncio.Task[Answer]]:
    """A call of one row for each of these, admitted."""
    calls = [rig.ask(value, klass=klass, **options) for value in values]
    await rig.loop.turn(2)
    return calls


def test_names_are_in_the_order_of_the_classes() -> None:
    assert [CLASSES[klass] for klass in Klass] == [klass.name.lower() for klass in Klass]


@virtual
async def test_full_queue_refuses_with_a_hint_from_the_backlog():
    """Of its class alone: a flood of best-effort calls refuses no real-time call."""
    async with busy(1_500, max_queue=2) as (rig, calls):
        calls += await begun(rig, 1.0, 2.0)
        with pytest.raises(QueueFull, match="'m': the queue of 2 rows is full") as refused:
            rig.served.lease(1)
        assert refused.value.retry_after_s == 5  # three batches of 1.5 s
    async with busy(20, BEST, max_queue=3) as (rig, calls):
        calls += await begun(rig, 1.0, 2.0, 3.0, klass=BEST)
        with pytest.raises(QueueFull, match="'m': the best-effort queue of 3 rows is full") as refused:
            rig.served.lease(1, klass=BEST)
        assert refused.value.retry_after_s == 1  # at least
        assert [rig.served.has_room(klass) for klass in CLASSES] == [True, False]
        calls += await begun(rig, 4.0, 5.0, 6.0)
        with pytest.raises(QueueFull, match="'m': the queue of 3 rows is full"):
            rig.served.admit(1)
        assert rig.served.pool.used == 7


@virtual
async def test_rows_leased_and_not_submitted_count_with_their_class():
    async with serving(make_model(max_queue=4)) as rig:
        for klass, other in (CLASSES, reversed(CLASSES)):
            with rig.served.lease(3, klass=klass):
                for rows, leased in ((2, klass), (5, other)):
                    with pytest.raises(QueueFull):
                        rig.served.lease(rows, klass=leased)
                rig.served.admit(4, other)
                rig.served.lease(1, klass=klass).close()
            rig.served.admit(4, klass)
            rig.assert_settled()


@pytest.mark.parametrize(
    ("klass", "waits", "asks", "timeout_ms", "taken"),
    [
        (REAL, [], {}, 39, False),  # one row runs for 20 ms
        (REAL, [], {}, 45, True),
        (REAL, [2] * 9, {"priority": 2}, 50, False),  # nine wait: a call of priority 1 is next, one of 2 is the last
        (REAL, [2] * 9, {"priority": 1}, 50, True),
        (BEST, [2] * 2, {}, 45, True),  # best-effort work costs a real-time call no deadline
        (REAL, [2], {"klass": BEST}, 50, False),
    ],
)
@virtual
async def test_a_deadline_is_held_against_what_goes_before_the_call(klass, waits, asks, timeout_ms, taken):
    async with busy(20, klass, max_queue=16) as (rig, calls):
        calls += [rig.ask(float(1 + n), klass=klass, priority=priority) for n, priority in enumerate(waits)]
        await rig.loop.turn(2)
        if taken:
            rig.served.lease(1, timeout_us=1000 * timeout_ms, **asks).close()
            return
        with pytest.raises(DeadlineUnreachable, match="after the call's deadline") as refused:
            rig.served.lease(1, timeout_us=1000 * timeout_ms, **asks)
        assert refused.value.retry_after_s == 1


@virtual
async def test_what_is_refused_is_part_of_the_arrival_rate():
    """For a full queue and for a deadline; a model that takes no calls at all has no rate."""
    async with busy(20_000, max_queue=1) as (rig, calls):
        calls += await begun(rig, 1.0)
        for _ in range(5):
            with pytest.raises(QueueFull):
                rig.served.lease(1)
        rig.engine.driver.intake.refusing = "no more"
        with pytest.raises(NotReady):
            rig.served.lease(1)
        rig.engine.driver.intake.refusing = None
        await rig.loop.passes(1_000 * MS)
        assert rig.engine.scheduler.states[rig.served.program].rate.rate == pytest.approx(7)
        await asyncio.gather(*calls)
        with pytest.raises(DeadlineUnreachable):
            rig.served.lease(1, timeout_us=1)
        await rig.loop.passes(1_000 * MS)
        assert rig.engine.scheduler.states[rig.served.program].rate.rate == pytest.approx(1)


# classes


@virtual
async def test_pool_holds_all_that_is_admitted_and_all_that_runs():
    """The queue is full, the workers are full: every row that was admitted has its slot."""
    full = device(2, 2, push_depth=2, push_ahead_ns=AT_ONCE, hangs=True)
    async with serving(make_model(max_batch=2, max_queue=3), device=full) as rig:
        calls = []
        for rows in (2, 2, 2, 2, 1, 1, 1):  # 2 workers x depth 2 x 2 rows, and 3 that wait
            calls.append(rig.ask(*[10.0] * rows))
            await rig.loop.turn(2)
        assert rig.served.pool.used == 11
        with pytest.raises(QueueFull):
            rig.served.lease(1)
        for _ in range(3):
            full.release(0)
            full.release(1)
            await rig.loop.turn(2)
        await asyncio.gather(*calls)
        rig.assert_settled()
