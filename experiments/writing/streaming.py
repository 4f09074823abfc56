"""What streaming costs: `python -m experiments.writing.streaming`.

The decoders of `writing`, step by step. The same texts are asked for as one answer each (`generate`) and as streams
(`generate_stream`), in turn, by a closed loop over HTTP. Writes docs/bench/writing-streaming.md and .json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from experiments.common.loads import post
from experiments.writing import live, models
from experiments.writing.streams import bodies_of
from loadtest.common.experiment import Experiment, Run
from loadtest.common.page import Data, Page
from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError, Server
from loadtest.generator.run import in_loop

WHOLE, STREAM = "generate", "generate_stream"
_END = b"0\r\n\r\n"  # of a chunked answer


async def read_answer(reader: asyncio.StreamReader) -> int:
    """Read one answer to its end, and take nothing apart. Returns its events. Raises MeasurementError for an error."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise MeasurementError(head.partition(b"\r\n")[0].decode())
    if b"transfer-encoding: chunked" not in head:
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        return 0
    events, tail = 0, b""
    while not tail.endswith(_END):
        data = await reader.read(1 << 16)
        if not data or b'"error"' in data:
            raise MeasurementError("a stream ended early")
        events += data.count(b"data: ")
        tail = tail[-8:] + data
    return events


async def closed_loop(server: Server, way: str, bodies: Iterator[bytes], in_flight: int, seconds: float) -> Data:
    """Rows a second by `in_flight` connections, the server's processor time of a row, and events a row.

    Counted from the first row that ends in the second quarter: then the rows in flight are no longer of one age.
    """
    ends: list[tuple[float, float]] = []  # of each row: when, and the processor time up to then
    events = 0
    begin = time.monotonic()

    async def client() -> None:
        nonlocal events
        reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
        try:
            while True:
                body = next(bodies)
                writer.write(post(f"/v2/models/{live.CELLS}/{way}", server.port, body))
                came = await read_answer(reader)
                events += came
                ends.append((time.monotonic() - begin, server.cpu_seconds() or 0.0))
        finally:
            writer.close()

    clients = [asyncio.create_task(client()) for _ in range(in_flight)]
    try:
        await asyncio.wait(clients, timeout=seconds, return_when="FIRST_EXCEPTION")
    finally:
        for task in clients:
            task.cancel()
    for task in clients:
        with suppress(asyncio.CancelledError):
            await task
    counted = [end for end in sorted(ends) if end[0] >= seconds / 4]
    rows = len(counted) - 1
    if rows < 1:
        raise MeasurementError(f"{way}: fewer than two rows ended in {0.75 * seconds:g} s; more --closed-s")
    passed, used = (last - first for first, last in zip(counted[0], counted[-1], strict=True))
    return {"rows_per_s": rows / passed, "cpu_s_per_row": used / rows, "events_per_row": events / len(ends)}


async def alternate(server: Server, chosen: argparse.Namespace, bodies: list[bytes], run: Run) -> Data:
    found: Data = {WHOLE: [], STREAM: []}
    for number in range(chosen.rounds):
        for way in (WHOLE, STREAM) if number % 2 else (STREAM, WHOLE):
            one = await closed_loop(server, way, itertools.cycle(bodies), chosen.in_flight, chosen.closed_s)
            found[way].append(one)
            run.say(
                f"{way}: {one['rows_per_s']:.2f} rows/s, {one['cpu_s_per_row']:.3f} s of processor time and "
                f"{one['events_per_row']:.1f} events a row"
            )
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="*", default=list(models.KINDS), help="of models")
    parser.add_argument("--closed-s", type=float, default=60.0, help="of a closed loop [60]")
    parser.add_argument("--rounds", type=int, default=4, help="of both [4]")
    parser.add_argument("--in-flight", type=int, default=live.IN_FLIGHT, help=f"requests [{live.IN_FLIGHT}]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the one worker [1]")
    parser.add_argument("--seed", type=int, default=0)


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    settings = {
        "threads": chosen.threads, "closed_s": chosen.closed_s, "rounds": chosen.rounds, "in_flight": chosen.in_flight,
        "largest": live.LARGEST, "lengths": live.LENGTHS,
    }  # fmt: skip
    figures: Data = {"settings": settings, "kinds": {}}
    for kind in chosen.kinds:
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
            weights, served, requests = (Path(folder, name) for name in ("weights", "models", "requests"))
            for made in (served, requests):
                made.mkdir()
            models.save_weights(weights, kind)
            models.write_cells(served / live.CELLS, weights, kind, live.LARGEST)
            bodies = bodies_of(live.write_requests(requests, chosen.seed)[live.CELLS])
            with live.serve(served, chosen.threads) as server:
                run.say(f"{kind}: ready after {server.wait_ready(limit_s=live.LOADING_S):.0f} s")
                figures["kinds"][kind] = in_loop(alternate(server, chosen, bodies, run))
        run.keep(figures)
    return figures


MOST = 0.05  # of the rows a second without streams


def cost(found: Data) -> float:
    """The share of rows a second that streams cost: the median of the rounds, each of both ways in turn."""
    rounds = zip(found[STREAM], found[WHOLE], strict=True)
    return 1 - median(stream["rows_per_s"] / whole["rows_per_s"] for stream, whole in rounds)


def missed(data: Data) -> list[str]:
    return [
        f"{kind}: streams cost {cost(found):.1%} of the rows a second, target {MOST:.0%}"
        for kind, found in data["kinds"].items()
        if cost(found) > MOST
    ]


PAGE = Page("writing-streaming", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.writing.streaming", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
