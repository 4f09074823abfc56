"""Calls are cancelled when their client disconnects; those that end soon cost no task."""

from __future__ import annotations

import asyncio
from typing import Any

from app.api.disconnects import DisconnectWatcher


class Call:
    """A lease that only remembers being cancelled, and the messages of its client."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.asked = asyncio.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    async def receive(self) -> dict[str, Any]:
        self.asked.set()
        return {"type": await self.messages.get()}


def begin(watcher: DisconnectWatcher, call: Call) -> None:
    watcher.begin(asyncio.get_running_loop(), call.receive, call)  # type: ignore[arg-type]


async def test_a_client_that_disconnects() -> None:
    watcher, call = DisconnectWatcher(0.001), Call()
    begin(watcher, call)
    call.messages.put_nowait("http.request")  # an empty message that ends a body is no disconnect
    async with asyncio.timeout(10):
        await call.asked.wait()
        assert not call.cancelled.is_set()
        call.messages.put_nowait("http.disconnect")
        await call.cancelled.wait()
    watcher.end(call)  # type: ignore[arg-type]


async def test_a_call_that_ends_in_time() -> None:
    """Before it is a period old, before it is two, and while it is watched: nothing is left behind."""
    watcher = DisconnectWatcher(0.001)
    calls = [Call() for _ in range(3)]
    for call in calls:
        begin(watcher, call)
    watcher.end(calls[0])  # type: ignore[arg-type]
    watcher._next_period(asyncio.get_running_loop())
    watcher.end(calls[1])  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await calls[2].asked.wait()
    watcher.end(calls[2])  # type: ignore[arg-type]
    watcher.end(calls[2])  # type: ignore[arg-type]  # once more does no harm
    assert [call.asked.is_set() for call in calls] == [False, False, True]
    assert (watcher._recent, watcher._older, watcher._tasks) == ({}, {}, {})
