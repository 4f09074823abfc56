"""Callers: what is admitted, and what those who leave leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from fakes import MS, virtual

from app.contract import Answer, ModelCall, awaited
from app.errors import BadRequest, DeadlineExceeded, DeadlineUnreachable, ModelFailed, NotReady, QueueFull
from app.scheduler.types import AT_ONCE, Klass

from .rig import POISON, Affine, Caller, Rig, ask, assert_answer, device, make_model, raising, rows_of, serving, tensor

# Invariant: a client that goes frees what it held, but never a slot that a unit reads, and disturbs nobody else.
# Whoever waits for an answer gets it once, when the call's slots are free, and its trouble is nobody else's.


@pytest.mark.parametrize("running", [True, False])
@virtual
async def test_a_client_who_goes_is_forgotten_while_waiting_and_ends_unheard_while_running(running: bool):
    model = Affine()
    async with serving(make_model(model, max_batch=2), device=device(2, hangs=True)) as rig:
        stays = rig.ask(10.0) if running else rig.ask(8.0, 9.0)
        if not running:
            await rig.loop.turn(2)
        with rig.served.lease(ModelCall(1, [rows_of(11.0)])) as lease:
            call = awaited(lease)
            await rig.loop.turn(2)
            call.cancel()
        assert rig.served.pool.used == 2  # of the unit that runs
        rig.device.release()
        assert_answer(await stays, *([10.0] if running else [8.0, 9.0]))
        await rig.loop.passes(10 * MS)
        assert model.saw(11.0) == running


@virtual
async def test_slots_are_given_back_once():
    """By a lease that was never run, one that is closed twice, and one that has its answer."""
    async with serving() as rig:
        with pytest.raises(ValueError, match="broadcast"):
            rig.served.lease(ModelCall(2, [np.zeros((2, 3), np.float32)]))
        lease, other = rig.served.lease(ModelCall(2)), rig.served.lease(ModelCall(1, [rows_of(10.0)]))
        lease.close()
        lease.close()
        assert rig.served.pool.used == 1
        answer = await awaited(other)
        other.close()
        assert_answer(answer, 10.0)


@pytest.mark.parametrize("value", [10.0, POISON])
@virtual
async def test_a_caller_that_raises_ends_neither_the_step_nor_the_answers_behind_it(value: float, caplog):
    """Also one that fails to take its error, and one that calls again at once: its slots are free by then."""

    async with serving(make_model(max_batch=4)) as rig:
        again = Caller(rig.served)
        first = Caller(rig.served, raising(RuntimeError("its own trouble"))).call(value)
        second = Caller(rig.served, lambda: again.call(13.0)).call(11.0)
        await rig.loop.passes(100 * MS)
        assert isinstance(first.ends[0], ModelFailed if value == POISON else Answer)
        for caller, asked in ((second, 11.0), (again, 13.0)):
            (answer,) = caller.ends
            assert_answer(answer, asked)
            assert caller.slots_used == 0
        (record,) = [record for record in caplog.records if record.exc_info]
        assert "a caller failed to take its" in record.getMessage()


@virtual
async def test_a_dropped_call_has_freed_its_slots_before_its_caller_gets_the_error():
    """The queue holds one row: the caller takes its place again at once."""
    async with serving(make_model(max_batch=1, max_queue=1), device=device(1, hangs=True)) as rig:
        running = Caller(rig.served).call(9.0)
        await rig.loop.turn(2)
        used = rig.served.pool.used
        again = Caller(rig.served)
        dropped = Caller(rig.served, lambda: again.call(12.0)).call(11.0, timeout_us=100_000)
        await rig.loop.passes(200 * MS)
        assert isinstance(dropped.ends[0], DeadlineExceeded)
        assert dropped.slots_used == used
        for _ in range(2):
            rig.device.release()
            await rig.loop.turn(5)
        await rig.loop.passes(200 * MS)
        assert_answer(again.ends[0], 12.0)
        assert_answer(running.ends[0], 9.0)


# values

IDS = replace(tensor("ids", "INT32", ("n", 4)), minimum=2, maximum=9)


@virtual
async def test_a_value_out_of_range_never_reaches_the_model():
    """As an array and as bytes; its slots are free again."""
    sums = make_model(lambda ids: ids.sum(1, keepdim=True), [IDS], [tensor("sum", "INT64", 1)])
    async with serving(sums) as rig:
        rows = np.array([[3, 4], [5, 10]], np.int32)
        for sent in (rows, memoryview(rows.tobytes())):
            with pytest.raises(BadRequest, match="at most 9, got 10"):
                rig.served.lease(ModelCall(2, [sent], {"n": 2}))
        assert rig.served.pool.used == 0
        assert (await ask(rig.served, rows - 1)).outputs[0].tolist() == [[5], [13]]


# Invariant: what is admitted has its slots; what is not is told why, when to come back, and leaves nothing.
# Both classes have queues and slots of their own.


REAL, BEST = Klass


@asynccontextmanager
async def busy(
    ms: int, klass: Klass | None = None, **batching: object
) -> AsyncIterator[tuple[Rig, list[asyncio.Task[Answer]]]]:
    """An engine whose only worker, of one row, runs a call of one row for 0; that call, in a list that is awaited."""
    async with serving(make_model(max_batch=1, **batching), device=device(1, ms=ms)) as rig:
        calls = await begun(rig, 0.0, klass=klass)
        yield rig, calls
        for value, answer in enumerate(await asyncio.gather(*calls)):
            assert_answer(answer, float(value))


async def begun(rig: Rig, *values: float, klass: Klass | None = None, **options: int) -> list[asyncio.Task[Answer]]:
    """A call of one row for each of these, admitted."""
    calls = [rig.ask(value, klass=klass, **options) for value in values]
    await rig.loop.turn(2)
    return calls


@virtual
async def test_full_queue_refuses_with_a_hint_from_the_backlog():
    """Of its class alone: a flood of best-effort calls refuses no real-time call."""
    async with busy(1_500, max_queue=2) as (rig, calls):
        calls += await begun(rig, 1.0, 2.0)
        with pytest.raises(QueueFull, match="'m': the queue of 2 rows is full") as refused:
            rig.served.lease(ModelCall(1))
        assert refused.value.retry_after_s == 5  # three batches of 1.5 s
    async with busy(20, BEST, max_queue=3) as (rig, calls):
        calls += await begun(rig, 1.0, 2.0, 3.0, klass=BEST)
        with pytest.raises(QueueFull, match="'m': the best-effort queue of 3 rows is full") as refused:
            rig.served.lease(ModelCall(1, klass=BEST))
        assert refused.value.retry_after_s == 1  # at least
        assert [rig.served.has_room(klass) for klass in Klass] == [True, False]
        calls += await begun(rig, 4.0, 5.0, 6.0)
        with pytest.raises(QueueFull, match="'m': the queue of 3 rows is full"):
            rig.served.admit(1, REAL)
        assert rig.served.pool.used == 7


@virtual
async def test_rows_leased_and_not_submitted_count_with_their_class():
    async with serving(make_model(max_queue=4)) as rig:
        for klass, other in ((REAL, BEST), (BEST, REAL)):
            with rig.served.lease(ModelCall(3, klass=klass)):
                for rows, leased in ((2, klass), (5, other)):
                    with pytest.raises(QueueFull):
                        rig.served.lease(ModelCall(rows, klass=leased))
                rig.served.admit(4, other)
                rig.served.lease(ModelCall(1, klass=klass)).close()
            rig.served.admit(4, klass)


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
            rig.served.lease(ModelCall(1, timeout_us=1000 * timeout_ms, **asks)).close()
            return
        with pytest.raises(DeadlineUnreachable, match="after the call's deadline") as refused:
            rig.served.lease(ModelCall(1, timeout_us=1000 * timeout_ms, **asks))
        assert refused.value.retry_after_s == 1


@virtual
async def test_what_is_refused_is_part_of_the_arrival_rate():
    """For a full queue and for a deadline; a model that takes no calls at all has no rate."""
    async with busy(20_000, max_queue=1) as (rig, calls):
        arrivals = rig.engine.scheduler.states[rig.served.program].estimates.arrivals
        calls += await begun(rig, 1.0)
        for _ in range(5):
            with pytest.raises(QueueFull):
                rig.served.lease(ModelCall(1))
        rig.engine.driver.intake.refusing = "no more"
        with pytest.raises(NotReady):
            rig.served.lease(ModelCall(1))
        rig.engine.driver.intake.refusing = None
        await rig.loop.passes(1_000 * MS)
        assert arrivals.rate == pytest.approx(7)
        await asyncio.gather(*calls)
        with pytest.raises(DeadlineUnreachable):
            rig.served.lease(ModelCall(1, timeout_us=1))
        await rig.loop.passes(1_000 * MS)
        assert arrivals.rate == pytest.approx(1)


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
            rig.served.lease(ModelCall(1))
        for _ in range(3):
            full.release(0)
            full.release(1)
            await rig.loop.turn(2)
        await asyncio.gather(*calls)
