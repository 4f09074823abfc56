"""Invariant: nothing starts past its deadline, nothing times out before it, and nobody waits for ever."""

from __future__ import annotations

import pytest
from fakes import HANGS, MS, FakeDevice, Fate, affine, virtual, virtual_loop

from app.errors import DeadlineExceeded, StarlingError
from app.scheduler.record import Entry, RecordingScheduler
from app.scheduler.scheduler import Scheduler

from .rig import Affine, Rig, make_model, serving


async def error_of(rig: Rig, task) -> tuple[StarlingError, int]:
    """The error a call ends with, and when."""
    with pytest.raises(StarlingError) as raised:
        await task
    return raised.value, rig.loop.now


@virtual
async def test_deadline_in_the_queue_is_answered_at_its_time_and_never_runs():
    model = Affine()
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: Fate(50 * MS))
    async with serving(make_model(model, max_batch=1), device=device) as rig:
        begin = rig.loop.now
        running = rig.ask(10.0)
        await rig.loop.turn(2)
        error, at = await error_of(rig, rig.ask(11.0, timeout_us=20_000))
        assert isinstance(error, DeadlineExceeded)
        assert str(error) == "model 'm': the deadline passed in the queue"
        assert at - begin == 20 * MS
        await running
        await rig.loop.passes(100 * MS)
        assert not model.saw(11.0)
        rig.assert_settled()


@virtual
async def test_deadline_while_running_is_answered_at_once_and_the_rest_of_the_batch_goes_on():
    device = FakeDevice(virtual_loop(), 4, fate=lambda pushed: Fate(50 * MS))
    async with serving(device=device) as rig:
        begin = rig.loop.now
        stays = rig.ask(10.0)
        error, at = await error_of(rig, rig.ask(11.0, timeout_us=20_000))
        assert str(error) == "model 'm': the deadline passed while it was running"
        assert at - begin == 20 * MS
        assert rig.served.pool.used == 2  # the unit still reads both slots
        await stays
        assert rig.loop.now - begin == 50 * MS
        assert rig.rows_pushed() == [2]
        rig.assert_settled()


@virtual
async def test_deadline_counts_from_arrival():
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: HANGS)
    async with serving(device=device) as rig:
        arrived = rig.loop.now
        await rig.loop.passes(5 * MS)  # the body was read
        _, at = await error_of(rig, rig.ask(10.0, timeout_us=30_000, arrived_ns=arrived))
        assert at - arrived == 30 * MS
        device.release()
        await rig.loop.turn(2)


@virtual
async def test_deadline_that_passed_between_lease_and_run():
    model = Affine()
    async with serving(make_model(model)) as rig:
        with rig.served.lease(1, timeout_us=5_000) as lease:
            await rig.loop.passes(6 * MS)
            with pytest.raises(DeadlineExceeded):
                await lease.run()
        assert model.batches == []
        rig.assert_settled()


@virtual
async def test_default_timeout_and_none_asked_for():
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: Fate(50 * MS))
    async with serving(make_model(default_timeout_ms=10.0), device=device) as rig:
        begin = rig.loop.now
        _, at = await error_of(rig, rig.ask(10.0))
        assert at - begin == 10 * MS
        await rig.loop.passes(50 * MS)
        await rig.ask(10.0, timeout_us=0)  # 0: no deadline
        rig.assert_settled()


@virtual
async def test_held_batch_leaves_at_its_delay():
    async with serving(make_model(policy="window", max_delay_ms=5.0)) as rig:
        begin = rig.loop.now
        first = rig.ask(10.0)
        await rig.loop.passes(3 * MS)
        second = rig.ask(11.0)
        await first
        await second
        assert [(pushed.rows, pushed.at - begin) for pushed in rig.device.pushed] == [(2, 5 * MS)]


@virtual
async def test_no_timer_is_shorter_than_a_millisecond():
    async with serving(make_model(policy="window", max_delay_ms=0.2)) as rig:
        begin = rig.loop.now
        await rig.ask(10.0)
        assert rig.device.pushed[0].at - begin == MS


@virtual
async def test_a_timer_that_fires_early_looks_at_the_clock_and_waits_on():
    """The engine's clock runs at 0.9 of the loop's time: each timer wakes it before its time."""
    async with serving(make_model(policy="window", max_delay_ms=20.0), rate=0.9) as rig:
        begin = rig.loop.now
        await rig.ask(10.0)
        waited = rig.device.pushed[0].at - begin
        assert 20 * MS <= waited * 0.9 < 22 * MS


@virtual
async def test_an_earlier_wake_replaces_the_timer_and_a_later_one_does_not():
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: HANGS)
    async with serving(make_model(max_batch=1), device=device) as rig:
        begin = rig.loop.now
        running = rig.ask(9.0)
        await rig.loop.turn(2)
        calls = []
        for ms in (80, 20, 50):  # a step each: at first the timer is set for 80 ms
            calls.append(rig.ask(10.0, timeout_us=1000 * ms))
            await rig.loop.turn(3)
        ends = [(await error_of(rig, calls[index]))[1] - begin for index in (1, 2, 0)]
        assert ends == [20 * MS, 50 * MS, 80 * MS]
        device.release()
        await running
        rig.assert_settled()


@virtual
async def test_timer_goes_on_after_the_call_it_was_set_for_has_left():
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: HANGS)
    async with serving(make_model(max_batch=1), device=device) as rig:
        begin = rig.loop.now
        running = rig.ask(9.0)
        await rig.loop.turn(2)
        gone, stays = rig.ask(10.0, timeout_us=10_000), rig.ask(11.0, timeout_us=40_000)
        await rig.loop.passes(5 * MS)
        gone.cancel()
        _, at = await error_of(rig, stays)
        assert at - begin == 40 * MS
        device.release()
        await running


# health


@virtual
async def test_stuck_after_the_floor():
    device = FakeDevice(virtual_loop(), 4, fate=lambda pushed: HANGS)
    async with serving(device=device, hang_floor_s=3.0) as rig:
        call = rig.ask(10.0, 11.0)
        await rig.loop.passes(3_000 * MS)
        assert rig.engine.stuck() is None
        await rig.loop.passes(MS)
        assert rig.engine.stuck() == "a batch of 2 rows of 'm' has run 3.0 s on worker 0, predicted 0.001 s"
        device.release()
        await call
        assert rig.engine.stuck() is None


@virtual
async def test_stuck_after_so_many_times_the_prediction():
    device = FakeDevice(virtual_loop(), 4, batch_ns=lambda size: 1_000 * MS, fate=lambda pushed: HANGS)
    async with serving(device=device, hang_factor=20.0, hang_floor_s=3.0) as rig:
        call = rig.ask(10.0)
        await rig.loop.passes(19_999 * MS)
        assert rig.engine.stuck() is None
        await rig.loop.passes(2 * MS)
        assert "predicted 1.000 s" in (rig.engine.stuck() or "")
        device.release()
        await call


@virtual
async def test_a_long_queue_is_not_stuck():
    async with serving(make_model(max_batch=1)) as rig:
        calls = [rig.ask(10.0) for _ in range(500)]
        for _ in range(5):
            await rig.loop.passes(100 * MS)
            assert rig.engine.stuck() is None
        for call in calls:
            await call


@virtual
async def test_a_dead_worker_is_noticed_without_a_unit():
    async with serving() as rig:
        assert rig.engine.stuck() is None
        rig.device.die(0)
        assert rig.engine.stuck() == "worker 0 has died"


# rate


@virtual
async def test_rate_is_of_the_last_closed_window():
    async with serving(window_s=2.0) as rig:
        begin = rig.loop.now
        for _ in range(10):
            await rig.ask(10.0, 11.0)
        assert rig.engine.snapshot().models[0].rate == 0.0
        await rig.loop.until(begin + 2_001 * MS)
        assert rig.engine.snapshot().models[0].rate == pytest.approx(10.0, rel=0.01)
        await rig.loop.until(begin + 4_003 * MS)
        assert rig.engine.snapshot().models[0].rate == 0.0


@virtual
async def test_lag_is_how_late_the_last_tick_was():
    """The clock runs at 1.25 of the loop's time: what is to come in 0.4 s comes in 0.5 s."""
    async with serving(window_s=0.4, rate=1.25) as rig:
        assert rig.engine.snapshot().lag_s == 0.0
        await rig.loop.until(rig.loop.now + 401 * MS)
        assert rig.engine.snapshot().lag_s == pytest.approx(0.1)


@virtual
async def test_preferred_size_follows_the_rate():
    async with serving(window_s=0.1) as rig:
        begin = rig.loop.now
        calls = [rig.ask(*[10.0] * 4) for _ in range(40)]  # 1,600 rows a second: two a batch of 1.2 ms
        await rig.loop.until(begin + 101 * MS)
        (gauges,) = rig.engine.snapshot().models
        assert gauges.rate == pytest.approx(1_600, rel=0.01)
        assert gauges.preferred == next(b for b in range(1, 5) if b * 1e9 / affine(b) > gauges.rate)
        for call in calls:
            await call


@virtual
async def test_the_end_of_each_window_is_followed_by_a_step():
    """What was held for one rate may go at another; nothing else may happen for long."""
    entries: list[Entry] = []
    device = FakeDevice(virtual_loop(), 4)
    async with serving(device=device, scheduler=RecordingScheduler(device.spec, sink=entries.append)) as rig:
        entries.clear()
        await rig.loop.passes(3_500 * MS)
    assert [entry.get("in", "step") for entry in entries] == ["tick", "step"] * 3


@virtual
async def test_a_rate_monitor_that_fails_is_heard_of(caplog: pytest.LogCaptureFixture):
    device = FakeDevice(virtual_loop(), 4)
    scheduler = Scheduler(device.spec)

    def fails(now: int) -> None:
        raise ArithmeticError("no rate")

    async with serving(device=device, scheduler=scheduler) as rig:
        scheduler.tick = fails
        await rig.loop.passes(1_500 * MS)
        assert "the rate-monitor has failed" in caplog.text
        assert "ArithmeticError: no rate" in caplog.text
