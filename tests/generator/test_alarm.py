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
async def test_rings_once_for_each_set_and_never_early(kind: Kind) -> None:
    rung: asyncio.Queue[int] = asyncio.Queue()
    bell = kind(lambda: rung.put_nowait(clock()))
    start = clock()
    for due in (start - MS, start + 2 * MS, start + 2 * MS + 1, start + 7 * MS):
        bell.set(due)
        assert await rung.get() >= due
    bell.close()
    assert rung.empty()


@each_kind
async def test_a_later_set_replaces_an_earlier(kind: Kind) -> None:
    rung: asyncio.Queue[int] = asyncio.Queue()
    bell = kind(lambda: rung.put_nowait(clock()))
    start = clock()
    bell.set(start + MS)
    bell.set(start + 10 * MS)
    assert await rung.get() >= start + 10 * MS
    bell.close()


@each_kind
async def test_closed_is_silent(kind: Kind) -> None:
    rung: asyncio.Queue[str] = asyncio.Queue()
    silent, other = kind(lambda: rung.put_nowait("silent")), kind(lambda: rung.put_nowait("other"))
    silent.set(clock() + MS)
    silent.close()
    silent.close()
    other.set(clock() + 5 * MS)
    assert await rung.get() == "other"
    other.close()
    assert rung.empty()


async def test_without_a_timerfd_it_is_the_loops_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(callback: Callable[[], None]) -> TimerFd:
        raise AttributeError("timerfd_create")

    monkeypatch.setattr(alarm, "TimerFd", none)
    assert isinstance(alarm.make(lambda: None), LoopTimer)
