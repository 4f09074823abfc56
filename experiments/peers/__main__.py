"""Starling against the servers that people use today: `python -m experiments.peers`. Writes docs/bench/peers.json.

The same model (`mlp`, 25 M weights, one compute thread) behind each, the same JSON over the same connections: 64
requests always in flight, then Poisson arrivals at 60 and 90 % of the rows a second that the bare model does in batches
of 32. One server runs at a time; they take turns within each round, so that a change of the machine affects all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.common.loads import CONNECTIONS, Answers, post, run_once
from experiments.peers.contenders import CONTENDERS, Contender, python_of, serving, version_of
from loadtest.bench.reference_servers import TorchLoop
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import ROOT
from loadtest.common.servers import MeasurementError, Server
from loadtest.generator.run import in_loop

BODIES = 16
LARGEST = 32
SHARES = (0.6, 0.9)
IDLE_S = 6.0  # before the load: Starling measures its batch times when nobody asks
KEPT = 0.97  # of the requests, at least, are answered in time by a server that keeps up
ENVIRONMENTS = ROOT / "out" / "peers"


def bodies(seed: int) -> list[np.ndarray[Any, Any]]:
    """Rows of 1,024 numbers with four decimals."""
    return [np.random.default_rng([seed, k]).random(1024).round(4) for k in range(BODIES)]


def request_of(contender: Contender, server: Server, row: np.ndarray[Any, Any]) -> bytes:
    x = row.tolist()
    return post(contender.path, server.port, json.dumps({"x": [x] if contender.batched else x}).encode())


def values_of(contender: Contender, body: bytes) -> np.ndarray[Any, Any]:
    answer = json.loads(body)
    return np.array(answer[0] if contender.batched else answer["y"], float).ravel()


def of_one(
    contender: Contender, python: str, wait_ms: int, rates: list[float | None], chosen: argparse.Namespace, seed: int,
    profiles: Path, rows: list[np.ndarray[Any, Any]], wanted: dict[int, np.ndarray[Any, Any]],
) -> dict[str, Data]:  # fmt: skip
    """All loads of one round on one server. Raises MeasurementError if an answer is not the first contender's."""
    found = {}
    answers = Answers()
    with serving(contender, python, wait_ms, profiles) as server:
        payloads = [request_of(contender, server, row) for row in rows]
        in_loop(run_once(payloads, server.port, answers, chosen.idle, 1.0, seed))
        in_loop(run_once(payloads, server.port, answers, chosen.seconds / 4, None, seed))
        for rate in rates:
            name = "closed" if rate is None else f"{rate:.0f}"
            answered = in_loop(run_once(payloads, server.port, answers, chosen.seconds, rate, seed))
            found[name] = answered.figures(chosen.seconds)
    for pick, body in answers.first.items():
        values = values_of(contender, body)
        if not np.allclose(values, wanted.setdefault(pick, values), rtol=1e-3, atol=1e-3):
            raise MeasurementError(f"{contender.name}: its answer to request {pick} is another than the others'")
    return found


def model_rows_per_s(seconds: float) -> float:
    """What the bare model does in batches of 32 on one thread."""
    with TorchLoop("mlp", LARGEST, 1) as loop:
        loop.wait_ready()
        return max(loop.rows_per_second(seconds) for _ in range(3))


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    names = chosen.only or [contender.name for contender in CONTENDERS]
    contenders = [contender for contender in CONTENDERS if contender.name in names]
    pythons = {contender.name: python_of(contender, ENVIRONMENTS, run.say) for contender in contenders}
    versions = {contender.name: version_of(contender, pythons[contender.name]) for contender in contenders}
    capacity = model_rows_per_s(chosen.seconds / 2)
    rates: list[float | None] = [None, *(share * capacity for share in SHARES)]
    runs: dict[str, dict[str, list[Data]]] = {}
    rows = bodies(chosen.seed)
    wanted: dict[int, np.ndarray[Any, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="starling-peers-") as profiles:
        for number in range(chosen.rounds):
            for contender in contenders:
                for wait_ms in chosen.wait_ms if contender.waits else [0]:
                    name = f"{contender.name}, waits {wait_ms} ms" if contender.waits else contender.name
                    python = pythons[contender.name]
                    got = of_one(contender, python, wait_ms, rates, chosen, number, Path(profiles), rows, wanted)
                    for load, figures in got.items():
                        runs.setdefault(name, {}).setdefault(load, []).append(figures)
                    run.say(f"{name}: {got['closed']['per_s']:.0f}/s")
            settings = {"seconds": chosen.seconds, "rounds": number + 1, "connections": CONNECTIONS, "largest": LARGEST}
            run.keep({"capacity": capacity, "shares": SHARES, "settings": settings, "versions": versions, "runs": runs})
    return {"capacity": capacity, "shares": SHARES, "settings": settings, "versions": versions, "runs": runs}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a run [8]")
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds with hardly a request before the load [6]")
    parser.add_argument("--wait-ms", type=int, nargs="+", default=[1, 10], help="waits tried for each that has one")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these contenders")
    parser.add_argument("--seed", type=int, default=0)


def kept(runs: list[Data], seconds: float) -> bool:
    """Whether the load was answered in time: else the queue grew for as long as it lasted."""
    return median(run["per_s"] * seconds / run["requests"] for run in runs) >= KEPT


def draw(data: Data, folder: Path) -> None:
    """The rates of the closed loop."""
    from loadtest.common.plots import ranked

    rates = {name: median(run["per_s"] for run in loads["closed"]) for name, loads in data["runs"].items()}
    names = sorted(rates, key=rates.__getitem__, reverse=True)
    ranked(names, [rates[name] for name in names], "requests/s", folder / "peers.png", "Starling")


PAGE = Page("peers", __name__, draw=draw)
EXPERIMENT = Experiment(PAGE, "experiments.peers", __doc__, measure, options)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
