"""The order of what the loop does: real-time answers and units before best-effort ones, one class's units first."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from fakes import MS, FakeDevice, Fate, Pushed, virtual, virtual_loop

from app.contract import Klass
from app.scheduler.record import Entry, RecordingScheduler
from planner.replay import replay

from .rig import Caller, Rig, make_model, serving

REAL, BEST = Klass


def calls(rig: Rig, log: list[str], klass: Klass, *values: float) -> list[asyncio.Future[None]]:
    """A call of each value, which writes down that its answer came, as a connection does."""
    ends = []
    for value in values:
        over = asyncio.get_running_loop().create_future()
        ends.append(over)
        Caller(rig.served, partial(answered, log, f"answer {klass} {value:g}", over)).call(value, klass=klass)
    return ends


def answered(log: list[str], told: str, over: asyncio.Future[None]) -> None:
    log.append(told)
    over.set_result(None)


def logging_device(log: list[str], *capacities: int) -> FakeDevice:
    def fate(pushed: Pushed) -> Fate:
        log.append(f"push {pushed.job.klass}")
        return Fate()

    return FakeDevice(virtual_loop(), *capacities, fate=fate, batch_ns=lambda size: 5 * MS)


@contextmanager
def readable(reader: Callable[[], object]) -> Iterator[Callable[[], object]]:
    """`reader` is called when the loop has looked at its sockets after the function given here was called."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()

    def read() -> None:
        ours.recv(1)
        reader()

    loop.add_reader(ours, read)
    try:
        yield lambda: theirs.send(b"x")
    finally:
        loop.remove_reader(ours)
        ours.close()
        theirs.close()


@virtual
async def test_real_time_is_answered_before_best_effort_work_is_handed_over() -> None:
    log: list[str] = []
    async with serving(make_model(max_batch=1), device=logging_device(log, 1)) as rig:
        over = [*calls(rig, log, REAL, 0.0), *calls(rig, log, BEST, 1.0, 2.0)]
        await asyncio.gather(*over)
    assert log == [
        f"push {REAL}", f"answer {REAL} 0", f"push {BEST}", f"push {BEST}", f"answer {BEST} 1", f"answer {BEST} 2"
    ]  # fmt: skip


@pytest.mark.parametrize("klass", Klass)
@virtual
async def test_with_one_class_the_device_gets_its_next_work_first(klass: Klass) -> None:
    log: list[str] = []
    async with serving(make_model(max_batch=1), device=logging_device(log, 1)) as rig:
        await asyncio.gather(*calls(rig, log, klass, 0.0, 1.0))
    assert log == [f"push {klass}", f"push {klass}", f"answer {klass} 0", f"answer {klass} 1"]


@virtual
async def test_a_real_time_request_that_is_readable_goes_before_best_effort_work() -> None:
    """It comes while a unit ends. The record has the inputs in the order in which the scheduler had them."""
    log: list[str] = []
    entries: list[Entry] = []
    over: list[asyncio.Future[None]] = []
    device = logging_device(log, 1)
    scheduler = RecordingScheduler(device.spec, sink=entries.append)
    async with serving(make_model(max_batch=1), device=device, scheduler=scheduler) as rig:
        with readable(lambda: over.extend(calls(rig, log, REAL, 9.0))) as send:
            over += calls(rig, log, BEST, 0.0, 1.0)
            await rig.loop.turn(4)
            report, device.report = device.report, lambda completion: (send(), report(completion))
            await rig.loop.passes(5 * MS)
            device.report = report
            await asyncio.gather(*over)
    assert [entry for entry in log if entry.startswith("push")] == [f"push {BEST}", f"push {REAL}", f"push {BEST}"]
    assert any(entry.get("held") for entry in entries)
    assert replay(json.dumps(entry) for entry in entries).line is None


@virtual
async def test_best_effort_answers_are_given_in_pieces() -> None:
    """The loop looks at its sockets between them."""
    log: list[str] = []
    async with serving(make_model(max_batch=16), device=logging_device(log, 16)) as rig:
        with readable(lambda: log.append("read")) as send:
            over = calls(rig, log, BEST, *map(float, range(16)))
            over[0].add_done_callback(lambda _: send())
            await asyncio.gather(*over)
    assert log[0] == f"push {BEST}"
    assert 1 < log.index("read") < len(log) - 1


@virtual
async def test_best_effort_answers_that_wait_for_their_turn_are_given_at_the_end() -> None:
    log: list[str] = []
    async with serving(make_model(max_batch=16), device=logging_device(log, 16)) as rig:
        over = calls(rig, log, BEST, *map(float, range(16)))
        await asyncio.wait([over[0]])
        rig.engine.abort("the server stops")
        assert all(answer.done() for answer in over)


@virtual
async def test_a_unit_that_starts_while_a_better_row_is_held_ends_with_its_first_stage() -> None:
    """It starts and is recalled in one step."""
    device = FakeDevice(virtual_loop(), 2, multi_step=True, batch_ns=lambda size: 5 * MS)
    staged = make_model(stages=(lambda x: x * 2, lambda x: x + 1), default_priority=2)
    held = make_model(name="held", policy="window", max_delay_ms=2.0, max_batch=2, default_priority=1)
    async with serving(held, staged, device=device) as rig:
        callers = [Caller(served).call(3.0) for served in rig.models]
        await rig.loop.passes(50 * MS)
        assert all(caller.done() for caller in callers)
        names = [pushed.job.executor.model.info.name for pushed in device.pushed]
        assert list(zip(names, (pushed.steps for pushed in device.pushed), strict=True)) == [
            ("m", 1), ("held", 1), ("m", 1)
        ]  # fmt: skip
