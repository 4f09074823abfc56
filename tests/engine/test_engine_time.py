"""Invariant: nothing starts past its deadline, nothing times out before it, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from fakes import MS, Fate, virtual

from app.contract import Answer, GeneratedText, ModelCall, awaited
from app.errors import DeadlineExceeded
from app.scheduler.record import Entry, RecordingScheduler
from planner.replay import replay

from .rig import Affine, Rig, device, make_model, rows_of, serving, tensor


async def error_of(rig: Rig, call: asyncio.Task[Any]) -> tuple[str, int]:
    """The error that a call ends with, and when."""
    with pytest.raises(DeadlineExceeded) as raised:
        await call
    return str(raised.value), rig.loop.now


@virtual
async def test_a_deadline_is_answered_at_its_time_in_the_queue_and_while_running():
    """What waits never runs; what runs ends, and the rest of its batch with it."""
    model = Affine()
    async with serving(make_model(model), device=device(2, fate=lambda pushed: Fate(50 * MS))) as rig:
        begin = rig.loop.now
        stays, late = rig.ask(10.0), rig.ask(11.0, timeout_us=20_000)
        await rig.loop.turn(2)
        waits = rig.ask(12.0, timeout_us=20_000)
        assert await error_of(rig, late) == ("model 'm': the deadline passed while it was running", begin + 20 * MS)
        assert await error_of(rig, waits) == ("model 'm': the deadline passed in the queue", begin + 20 * MS)
        assert rig.served.pool.used == 2  # the unit still reads both slots
        await stays
        assert rig.loop.now - begin == 50 * MS
        await rig.loop.passes(100 * MS)
        assert (rig.rows_pushed(), model.saw(12.0)) == ([2], False)


@virtual
async def test_a_deadline_counts_from_arrival_and_may_pass_before_the_rows_are_submitted():
    model = Affine()
    async with serving(make_model(model), device=device(1, hangs=True)) as rig:
        arrived = rig.loop.now
        await rig.loop.passes(5 * MS)  # the body was read
        with rig.served.lease(ModelCall(1, timeout_us=5_000)) as lease:
            await rig.loop.passes(6 * MS)
            with pytest.raises(DeadlineExceeded):
                await awaited(lease)
        assert model.batches == []
        _, at = await error_of(rig, rig.ask(10.0, timeout_us=30_000, arrived_ns=arrived))
        assert at - arrived == 30 * MS
        rig.device.release()
        await rig.loop.turn(2)


@virtual
async def test_default_timeout_and_none_asked_for():
    slow = device(1, fate=lambda pushed: Fate(50 * MS))
    async with serving(make_model(default_timeout_ms=10.0), device=slow) as rig:
        begin = rig.loop.now
        _, at = await error_of(rig, rig.ask(10.0))
        assert at - begin == 10 * MS
        await rig.loop.passes(50 * MS)
        await rig.ask(10.0, timeout_us=0)  # 0: no deadline


@pytest.mark.parametrize(
    ("delay_ms", "rate", "least", "most"),
    [
        (5.0, 1.0, 5.0, 5.0),
        (0.2, 1.0, 1.0, 1.0),  # no timer is shorter than a millisecond
        (20.0, 0.9, 20.0, 22.0),  # the clock is slower than the loop's time: each timer fires before its time
    ],
)
@virtual
async def test_a_held_batch_leaves_at_its_delay(delay_ms: float, rate: float, least: float, most: float):
    async with serving(make_model(policy="window", max_delay_ms=delay_ms), rate=rate) as rig:
        begin = rig.loop.now
        first = rig.ask(10.0)
        await rig.loop.passes(int(delay_ms * MS) // 2)
        await asyncio.gather(first, rig.ask(11.0))
        (pushed,) = rig.device.pushed
        assert pushed.rows == 2
        assert least * MS <= (pushed.at - begin) * rate <= most * MS


@virtual
async def test_an_earlier_wake_replaces_the_timer_a_later_one_and_a_caller_who_leaves_do_not():
    async with serving(make_model(max_batch=1), device=device(1, hangs=True)) as rig:
        begin = rig.loop.now
        running = rig.ask(9.0)
        await rig.loop.turn(2)
        calls = []
        for ms in (80, 20, 10, 50):  # a step each: at first the timer is set for 80 ms
            calls.append(rig.ask(10.0, timeout_us=1000 * ms))
            await rig.loop.turn(3)
        calls[2].cancel()
        assert [(await error_of(rig, calls[index]))[1] - begin for index in (1, 3, 0)] == [20 * MS, 50 * MS, 80 * MS]
        rig.device.release()
        await running


# health


@pytest.mark.parametrize(("predicted_ms", "stuck_ms"), [(None, 3_000), (1_000, 20_000)])
@virtual
async def test_stuck_after_the_floor_or_so_many_times_the_prediction(predicted_ms: int | None, stuck_ms: int):
    async with serving(device=device(4, ms=predicted_ms, hangs=True), hang_floor_s=3.0) as rig:
        call = rig.ask(10.0, 11.0)
        await rig.loop.passes(stuck_ms * MS)
        assert rig.engine.stuck() is None
        await rig.loop.passes(2 * MS)
        why = f"has run {stuck_ms / 1000:.1f} s on worker 0, predicted {(predicted_ms or 1) / 1000:.3f} s"
        assert rig.engine.stuck() == f"a batch of 2 rows of 'm' {why}"
        rig.device.release()
        await call
        assert rig.engine.stuck() is None


@virtual
async def test_a_long_queue_is_not_stuck_and_a_dead_worker_is_noticed_without_a_unit():
    async with serving(make_model(max_batch=1)) as rig:
        calls = [rig.ask(10.0) for _ in range(500)]
        for _ in range(5):
            await rig.loop.passes(100 * MS)
            assert rig.engine.stuck() is None
        await asyncio.gather(*calls)
        rig.device.die(0)
        assert rig.engine.stuck() == "worker 0 has died"


# rate


@pytest.mark.parametrize(
    ("timeout_ms", "total_ms", "piece_ms", "ends_ms", "answered"),
    [
        (20, None, 10, 50, True),  # it began in time
        (20, None, None, 20, False),
        (20, None, 30, 20, False),
        (20, 80, 10, 50, True),
        (20, 40, 10, 40, False),  # it began in time, and does not end in time
        (None, 40, 10, 40, False),
        (20, 15, None, 15, False),
    ],
)
@virtual
async def test_an_answer_that_is_read_piece_by_piece_is_to_begin_in_time_and_to_end_in_time(
    timeout_ms: int | None, total_ms: int | None, piece_ms: int | None, ends_ms: int, answered: bool
) -> None:
    counts = [tensor(name, "INT64", 1) for name in ("read", "written")]
    model = replace(make_model(lambda x: (x[:, :1].long(), x[:, :1].long()), outputs=counts), writes=True)
    entries: list[Entry] = []
    fake = device(2, fate=lambda pushed: Fate(50 * MS))
    async with serving(model, device=fake, scheduler=RecordingScheduler(fake.spec, sink=entries.append)) as rig:
        begin = rig.loop.now
        timeouts = {"timeout_us": timeout_ms, "total_timeout_us": total_ms}
        asked = {name: value and value * 1000 for name, value in timeouts.items()}
        with rig.served.lease(ModelCall(1, [rows_of(10.0)], **asked)) as lease:
            lease.on_piece = lambda row, piece: None
            answer, ended = awaited(lease), []
            answer.add_done_callback(lambda future: ended.append(rig.loop.now - begin))
            if piece_ms is not None:
                await rig.loop.until(begin + piece_ms * MS)
                job = fake.pushed[-1].job
                job.readers.send({job.slots[0]: GeneratedText("a", "", 1, 1)})
            (end,) = await asyncio.gather(answer, return_exceptions=True)
            assert (ended, isinstance(end, Answer)) == ([ends_ms * MS], answered)
            assert answered or isinstance(end, DeadlineExceeded)
        await rig.loop.passes(100 * MS)
    assert replay(map(json.dumps, entries)).same


@virtual
async def test_what_is_left_of_calls_that_have_gone_is_noticed_while_nothing_is_served(caplog: Any) -> None:
    """Counts, and slots. While a call is here nothing is said."""
    async with serving(make_model()) as rig:
        driver = rig.engine.driver
        await rig.ask(10.0)
        await rig.loop.passes(3_000 * MS)
        assert (driver.faults, caplog.records) == (0, [])
        slots = rig.served.pool.take(1)
        rig.engine.scheduler._ledger.alive += 1
        await rig.loop.passes(3_000 * MS)
        assert (driver.faults, rig.engine.snapshot().faults) == (2, 2)
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
            "nothing is being served, but there are still {'rows alive': 1, 'slots': 1}: please report this"
        ]
        rig.served.pool.give_back(slots)
        rig.engine.scheduler._ledger.alive -= 1
        await rig.loop.passes(3_000 * MS)
        assert driver.faults == 2
