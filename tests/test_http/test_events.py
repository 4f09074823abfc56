"""Memory of a stream: what waits for a slow client is not more than its rows have made."""

from __future__ import annotations

import asyncio
from typing import Any

from app.http.codecs.events import Stream


async def test_a_client_that_does_not_read_costs_one_message_and_what_it_has_not_read() -> None:
    """Memory of a slow reader: a message under way, and the pieces behind it. Nothing is made into events early."""
    events: list[int] = []
    messages: list[Any] = []
    reads = asyncio.Event()

    async def send(message: Any) -> None:
        messages.append(message)
        await reads.wait()

    stream = Stream(lambda row, pieces, first: events.append(len(pieces)) or b".")  # type: ignore[func-returns-value]
    task = asyncio.create_task(stream.send(send, lambda error: None))
    for _ in range(1000):
        stream.add(0, "a")
        await asyncio.sleep(0)
    assert (len(messages), sum(events)) == (1, 1)
    stream.end(b"")
    reads.set()
    await task
    assert (len(messages), sum(events)) == (2, 1000)
