"""What a batch costs beyond computing, and where: `python -m experiments.costs.handover`.

Two servers take turns under the same closed loops: this checkout's, and one that answers the calls of the last batch
without first waiting for the worker to begin the next. The model sleeps, so that what differs is the hand-over. Prints
the medians and 90th percentiles of giving a batch to its worker (start) and of hearing of its end (back), in
microseconds, and their sum for half of the batches or fewer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.costs.handover_server import KINDS
from loadtest.bench import bodies, closed_loop
from loadtest.bench.load import Load
from loadtest.common.paths import ROOT
from loadtest.common.servers import starling

MODELS = str(ROOT / "loadtest" / "bench" / "models")
CONNECTIONS = (1, 8, 64)
Window = tuple[int, int]  # monotonic nanoseconds

HEADINGS = ("connections", "server", "batches", "rows", "start p50", "p90", "back p50", "p90", "both p50", "mean")


def measure(kind_files: dict[str, Path], rounds: int, seconds: float) -> dict[tuple[str, int], list[Window]]:
    """Load a server of each kind in turns; returns when each was under how many connections."""
    windows: dict[tuple[str, int], list[Window]] = {(kind, many): [] for kind in kind_files for many in CONNECTIONS}
    with ExitStack() as stack:
        servers = {}
        for kind, file in kind_files.items():
            command = [sys.executable, "-m", "experiments.costs.handover_server", str(file), kind]
            flags = ("--models", MODELS, "--threads", "1", "--profile-budget-s", "0")
            servers[kind] = stack.enter_context(starling(flags, command))
            servers[kind].wait_ready()
        for index in range(rounds):
            for kind in list(servers)[:: 1 if index % 2 else -1]:
                server = servers[kind]
                request = bodies.v2_binary(server.metadata("sleep"))
                for many in CONNECTIONS:
                    begun = time.monotonic_ns()
                    closed_loop.run(Load(server.port, request, seconds, many))
                    windows[kind, many].append((begun, time.monotonic_ns()))
    return windows


def within(batches: NDArray[np.int64], windows: Sequence[Window]) -> NDArray[np.int64]:
    """The batches whose hand-over ended in one of the windows."""
    inside = np.zeros(len(batches), dtype=bool)
    for first, last in windows:
        inside |= (batches[:, 0] >= first) & (batches[:, 0] < last)
    return batches[inside]


def row(connections: int, kind: str, batches: NDArray[np.int64]) -> list[str]:
    start, back, rows = batches[:, 1] / 1e3, batches[:, 2] / 1e3, batches[:, 3]
    spread = [f"{np.quantile(times, share):.0f}" for times in (start, back) for share in (0.5, 0.9)]
    both = start + back
    return [
        str(connections), kind, str(len(batches)), f"{rows.mean():.1f}", *spread, f"{np.median(both):.0f}",
        f"{both.mean():.0f}",
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs.handover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load in a round [2]")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        files = {kind: Path(folder) / f"{kind}.json" for kind in KINDS}
        windows = measure(files, chosen.rounds, chosen.seconds)
        found = {kind: np.array(json.loads(file.read_text()), dtype=np.int64) for kind, file in files.items()}
    table = [list(HEADINGS)]
    for many in CONNECTIONS:
        table += [row(many, kind, within(found[kind], windows[kind, many])) for kind in KINDS]
    for line in table:
        print("".join(text.rjust(13) for text in line))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
