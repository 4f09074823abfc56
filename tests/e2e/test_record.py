"""A recorded session of a live server, replayed into a fresh scheduler, gives the same Steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from background import eventually

from planner.replay import replay

from .server import DEMO, Server
from .wire import Wire, infer


async def test_a_live_record_replays(start: Callable[..., Server], tmp_path: Path) -> None:
    """Several models, rows that fail, deadlines, clients that go, a reload."""
    record = tmp_path / "record.jsonl"
    flags = ("--model", f"echo={DEMO / 'echo'}", "--record", str(record))
    flags += ("--policy", "window", "--max-delay-ms", "1", "--model-control")
    server = await asyncio.to_thread(start, "marked", "narrow", flags=flags)

    async def client(number: int) -> None:
        for turn in range(12):
            async with await Wire.open(server.host) as wire:
                requests = [
                    infer("echo", [number, turn, 0, 0]),
                    infer("marked", [-1 if (number + turn) % 7 == 0 else 1, turn]),
                    infer("narrow", [turn], parameters={"timeout": 1500, "priority": 1 + turn % 2}),
                ]
                wire.send(requests[(number + turn) % 3])
                if (number * turn) % 5 != 4:  # else gone at once
                    assert (await wire.answer()).status in (200, 429, 500, 504)

    await asyncio.gather(*map(client, range(32)))
    assert (await asyncio.to_thread(server.post, "/v2/repository/models/echo/load")).status == 200
    await asyncio.gather(*map(client, range(32)))
    counted = 'starling_demand_seconds_total{class="realtime",model="narrow",version="1"}'
    await asyncio.to_thread(eventually, lambda: server.metric(counted) > 0)  # a window has closed
    assert await asyncio.to_thread(server.stop) == 0

    lines = record.read_text(encoding="utf-8").splitlines()
    replayed = replay(lines)
    assert replayed.same, replayed
    assert replayed.hole == 0
    assert replayed.equal > 100
    kinds = {entry.get("in", "step") for entry in map(json.loads, lines[1:])}
    assert {"add_program", "submit", "finished", "step", "tick", "remove_program"} <= kinds
