"""What a load costs those who call another model meanwhile: `python -m experiments.costs.loads`.

A server answers 200 calls of `echo` a second. Beside that it loads a transformers folder, whose library it has not
imported yet, an ONNX graph of 256 MB, and an nn.Module and a .pt2 of 100 MB, one after another, each of them twice.
Printed are the median and the 99th percentile of the calls at rest, and while each was loaded: at most 20 ms more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path

from app.models.repository import SETS
from experiments.costs import reloads
from loadtest.common.servers import Server, starling

RATE = 200.0
LIMIT_MS = 20.0
SIZES = {"transformers": 100, "onnx": 256, "module": 100, "pt2": 100}  # MB
_BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()


class Calls:
    """An open loop over as many connections as it needs. `ended`: when a call was due, and its latency, in s."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended: list[tuple[float, float]] = []
        head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(_BODY)}\r\n\r\n"
        self._request = head.encode() + _BODY

    async def run(self, over: asyncio.Event) -> None:
        due = time.perf_counter()
        while not over.is_set():
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self._tasks.add(task := asyncio.create_task(self._call(due)))
            task.add_done_callback(self._tasks.discard)
            due += 1 / RATE
        await asyncio.gather(*self._tasks)
        for _, writer in self._free:
            writer.close()

    async def _call(self, due: float) -> None:
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        self.ended.append((due, time.perf_counter() - due))
        self._free.append((reader, writer))

    def between(self, began: float, ended: float) -> list[float]:
        """Latencies in ms of the calls that were due then."""
        return sorted(1e3 * latency for due, latency in self.ended if began <= due <= ended)


def _load(server: Server, model: str) -> tuple[float, float]:
    """Load a model. Returns when that began and ended."""
    connection, began = HTTPConnection("127.0.0.1", server.port, timeout=300), time.perf_counter()
    connection.request("POST", f"/v2/repository/models/{model}/load", b"")
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    connection.close()
    return began, time.perf_counter()


async def measure(server: Server, made: Path, folder: Path, rest_s: float) -> dict[str, list[float]]:
    """Latencies by what was loaded. Models are moved from `made` to the server's `folder` before they are loaded."""
    calls, over, found = Calls(server), asyncio.Event(), {}
    running = asyncio.create_task(calls.run(over))
    began = time.perf_counter()
    await asyncio.sleep(rest_s)
    found["at rest"] = calls.between(began + rest_s / 4, time.perf_counter())
    for model in SIZES:
        (made / model).rename(folder / model)
        for which in ("first", "again"):
            span = await asyncio.to_thread(_load, server, model)
            await asyncio.sleep(1.0)
            found[f"{model}, {which}"] = calls.between(*span)
    over.set()
    await running
    return found


def _of(latencies: list[float], share: float) -> float:
    """The percentile by nearest rank."""
    return latencies[math.ceil(len(latencies) * share) - 1] if latencies else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rest", type=float, default=10.0, help="seconds without a load")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        made, folder = Path(place) / "made", Path(place) / "models"
        made.mkdir()
        folder.mkdir()
        for model, mib in SIZES.items():
            reloads.write(made / model, model, mib)
        shutil.copytree(SETS["demo"]["echo"], folder / "echo")
        with starling(["--models", str(folder), "--model-control", "--profile-dir", f"{place}/profiles"]) as server:
            server.wait_ready()
            found = asyncio.run(measure(server, made, folder, chosen.rest))
            metrics = server.call("GET", "/metrics")[2].decode()
            print(*(line for line in metrics.splitlines() if line.startswith("starling_collection")), sep="\n")
    worst = {name: _of(latencies, 0.99) for name, latencies in found.items()}
    for name, latencies in found.items():
        print(f"{name}: {len(latencies)} calls, median {_of(latencies, 0.5):.1f} ms, p99 {worst[name]:.1f} ms")
    return int(max(worst.values()) > worst["at rest"] + LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
