"""Texts that are sent while they are written: how long until the first piece of each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError


def bodies_of(path: Path) -> list[bytes]:
    """V2 requests of a text as requests of the generate extension."""
    requests = json.loads(path.read_text(encoding="ascii"))
    texts = [(one["inputs"][0]["data"][0], one["parameters"]) for one in requests]
    return [json.dumps({"text_input": text, "parameters": asked}).encode() for text, asked in texts]


async def first_pieces(
    port: int, model: str, bodies: Sequence[bytes], rate: float, seconds: float, seed: int
) -> list[float]:
    """Poisson arrivals, each on a connection of its own -> milliseconds from when it was due to its first piece."""
    random = np.random.default_rng([seed, 6])
    due = np.cumsum(random.exponential(1 / rate, max(1, round(rate * seconds))))
    chosen = random.integers(len(bodies), size=len(due))
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(due_s: float, body: bytes) -> float:
        await asyncio.sleep(start + due_s - loop.time())
        return await _first(port, model, body) - start - due_s

    waits = await asyncio.gather(*(one(at, bodies[number]) for at, number in zip(due.tolist(), chosen, strict=True)))
    return [1000 * wait for wait in waits]


async def _first(port: int, model: str, body: bytes) -> float:
    """When the first piece of a text had arrived, on the loop's clock. Reads to the end."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    first, last = 0.0, b""
    async for line in reader:
        if line.startswith(b"data: "):
            first, last = first or asyncio.get_running_loop().time(), line
    writer.close()
    ended: dict[str, Any] = json.loads(last.removeprefix(b"data: ") or b"{}")
    if "finish_reason" not in ended:
        raise MeasurementError(f"{model}: expected a text, got {ended}")
    return first
