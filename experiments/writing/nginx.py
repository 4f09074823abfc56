"""How much later nginx passes the events of a stream on: `python -m experiments.writing.nginx`.

The model `writer`, which ships with Starling, writes one text again and again, alone; its client asks the server itself
and nginx with the drill's configuration in turn. Prints, for each event of the text, how much later it comes through
nginx: the median over the texts, and of all events the median and the largest of these. nginx is to be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from experiments.writing.streams import event_times
from loadtest.common.paths import ZOO
from loadtest.common.servers import starling
from loadtest.drill import nginx
from loadtest.generator.run import in_loop

MODEL, TEXT, MOST_MS = "writer", "The ferry was", 5.0


async def waits_ms(port: int) -> list[float]:
    """Ask for the text once -> milliseconds from the request to each of its events."""
    began = asyncio.get_running_loop().time()
    times = await event_times(port, MODEL, json.dumps({"text_input": TEXT}).encode())
    return [1000 * (time - began) for time in times]


async def compare(direct: int, behind: int, texts: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """By event: milliseconds that it comes later from the port `behind` than from `direct`."""
    for port in (direct, behind):
        await waits_ms(port)  # the first text is slower
    found: dict[int, list[list[float]]] = {direct: [], behind: []}
    for number in range(texts):
        for port in (direct, behind) if number % 2 else (behind, direct):
            found[port].append(await waits_ms(port))
    events = min(len(times) for text in found.values() for times in text)  # two tokens may share an event
    one, other = (np.median([times[:events] for times in found[port]], axis=0) for port in (behind, direct))
    return one - other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=40, help="each way [40]")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starling-nginx-") as name:
        folder = Path(name)
        flags = ("--model", f"{MODEL}={ZOO / MODEL}", "--threads", "1", "--profile-budget-s", "0")
        with starling((*flags, "--profile-dir", str(folder / "profiles"))) as server:
            server.wait_ready()
            with nginx.start(folder, [server.port], nginx.directives()) as front:
                front.wait_ready()
                later = in_loop(compare(server.port, front.port, chosen.texts))
    print(f"{len(later)} events, later through nginx: {np.median(later):.2f} ms, at most {later.max():.2f} ms")
    return int(later.max() > MOST_MS)


if __name__ == "__main__":
    sys.exit(main())
