"""Texts that are sent while they are written: when their pieces come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.common.loads import post
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
        return (await event_times(port, model, body))[0] - start - due_s

    waits = await asyncio.gather(*(one(at, bodies[number]) for at, number in zip(due.tolist(), chosen, strict=True)))
    return [1000 * wait for wait in waits]


async def event_times(port: int, model: str, body: bytes) -> list[float]:
    """When each event of a text had arrived, on the loop's clock. Reads to the end."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(post(f"/v2/models/{model}/generate_stream", port, body, "Connection: close"))
    times, last = [], b""
    async for line in reader:
        if line.startswith(b"data: "):
            times.append(asyncio.get_running_loop().time())
            last = line
    writer.close()
    if b'"finish_reason"' not in last:
        raise MeasurementError(f"{model}: expected a text, got {last.decode()!r}")
    return times
