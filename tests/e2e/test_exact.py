"""Every answer is made of its own input, whatever it was batched with."""

from __future__ import annotations

import asyncio

from .examples import example
from .server import Server
from .wire import Wire

CALLS = 6_000
CONNECTIONS = 64


async def test_echo_hammered(server: Server) -> None:
    calls = iter(range(CALLS))
    wrong: list[int] = []

    async def client() -> None:
        async with await Wire.open(server.host) as wire:
            for call in calls:
                asked = example(call)
                if not asked.answered(await wire.call(asked.wire())):
                    wrong.append(call)

    batches = 'nv_inference_exec_count{model="echo",version="1"}'
    before = await asyncio.to_thread(server.metric, batches)
    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    assert wrong == []
    ran = await asyncio.to_thread(server.metric, batches) - before
    assert ran < CALLS  # they were batched
    assert await asyncio.to_thread(server.slots, "echo") == 0
