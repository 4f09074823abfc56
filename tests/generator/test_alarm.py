"""An alarm rings once for each set, never early, and the last set counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadtest.generator import alarm
from loadtest.generator.alarm import Alarm, LoopTimer, TimerFd, clock

MS = 1_000_000
Kind = Callable[[Callable[[], None]], Alarm]
each_kind = pytest.mark.parametrize("kind", [LoopTimer, TimerFd])


@each_kind
async def test_rings_in_order_and_never_early(kind: Kind) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    start = clock()
    due = [start - MS, start + 2 * MS, start + 2 * MS + 1, start + 7 * MS]
    rung: list[int] = []

    def ring() -> None:
        rung.append(clock())
        if len(rung) < len(due):
            bell.set(due[len(rung)])
        else:
            done.set_result(None)

    bell = kind(ring)
    bell.set(due[0])
    await done
    bell.close()
    assert len(rung) == len(due)
    assert all(at >= instant for at, instant in zip(rung, due, strict=True))


@each_kind
async def test_a_later_set_replaces_an_earlier(kind: Kind) -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    start = clock()
    bell = kind(lambda: done.set_result(clock()))
    bell.set(start + MS)
    bell.set(start + 10 * MS)
    assert await done >= start + 10 * MS
    bell.close()


@each_kind
async def test_closed_is_silent(kind: Kind) -> None:
    rung: list[int] = []
    silent = kind(lambda: rung.append(1))
    silent.set(clock() + MS)
    silent.close()
    silent.close()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    other = kind(lambda: done.set_result(None))
    other.set(clock() + 5 * MS)
    await done
    other.close()
    assert rung == []


async def test_without_a_timerfd_it_is_the_loops_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(callback: Callable[[], None]) -> TimerFd:
        raise AttributeError("timerfd_create")

    monkeypatch.setattr(alarm, "TimerFd", none)
    assert isinstance(alarm.make(lambda: None), LoopTimer)
