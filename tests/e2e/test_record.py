"""A recorded session of a live server, replayed into a fresh scheduler, gives the same Steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from background import eventually

from planner.replay import replay

from .server import DEMO, Server
from .wire import Wire, infer, once, post


async def test_a_live_record_replays(start: Callable[..., Server], tmp_path: Path) -> None:
    """Several models, calls of several rows, rows that fail, deadlines, clients that go, a reload."""
    record = tmp_path / "record.jsonl"
    flags = ("--model", f"echo={DEMO / 'echo'}", "--record", str(record))
    flags += ("--policy", "window", "--max-delay-ms", "1", "--model-control")
    server = await asyncio.to_thread(start, "gate", "marked", "narrow", "tokens", flags=flags)

    async def client(number: int) -> None:
        for turn in range(12):
            async with await Wire.open(server.host) as wire:
                requests = [
                    infer("echo", [number, turn, 0, 0]),
                    infer("marked", [-1 if (number + turn) % 7 == 0 else 1, turn]),
                    infer("narrow", [turn], parameters={"timeout": 1500, "priority": 1 + turn % 2}),
                    tokens(1 + (number + turn) % 12),
                ]
                wire.send(requests[(number + turn) % 4])
                if (number * turn) % 5 != 4:  # else gone at once
                    assert (await wire.answer()).status in (200, 429, 500, 504)

    def tokens(rows: int) -> bytes:
        tensors = [
            {"name": name, "shape": [rows, 3], "datatype": "INT64", "data": [1] * (3 * rows)}
            for name in ("ids", "mask")
        ]
        return post("/v2/models/tokens/infer", json.dumps({"inputs": tensors}).encode())

    await asyncio.gather(*map(client, range(32)))
    assert (await asyncio.to_thread(server.post, "/v2/repository/models/echo/load")).status == 200
    await asyncio.gather(*map(client, range(32)))
    await drops(server)
    counted = 'starling_demand_seconds_total{class="realtime",model="narrow",version="1"}'
    await asyncio.to_thread(eventually, lambda: server.metric(counted) > 0)  # a window has closed
    assert await asyncio.to_thread(server.stop) == 0

    with record.open(encoding="utf-8") as lines:
        replayed = replay(lines)
    assert replayed.same, replayed
    assert replayed.hole == 0
    assert replayed.equal > 100
    entries = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    kinds = {entry.get("in", "step") for entry in entries[1:]}
    assert {"add_program", "submit", "cancel", "finished", "step", "tick", "remove_program"} <= kinds
    dropped = {reason for entry in entries if "step" in entry for _, reason, _ in entry["step"]["drop"]}
    assert {"model", "deadline"} <= dropped


async def drops(server: Server) -> None:
    """Behind a gate that is shut: a call whose client goes, and one whose deadline passes."""
    assert server.gate is not None
    async with await Wire.open(server.host) as held, await Wire.open(server.host) as gone:
        held.send(infer("gate", [2]))
        await asyncio.to_thread(server.gate.wait)
        gone.send(infer("gate", [3]))
        await asyncio.to_thread(eventually, lambda: server.slots("gate") == 2)
        gone.close()
        await asyncio.to_thread(eventually, lambda: server.slots("gate") == 1)
        late = await once(server.host, infer("gate", [4], parameters={"timeout": 100_000}))
        assert late.status == 504
        server.gate.open()
        assert (await held.answer()).status == 200
