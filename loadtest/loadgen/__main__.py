"""MLPerf's LoadGen against a server, in its four scenarios: `python -m loadtest.loadgen`.

Needs `pip install mlcommons-loadgen`. Starts a server of this checkout, or takes the one that `--server` names. A
sample is a row, with tensors as bytes: SingleStream sends one row at a time, MultiStream 8 in one request, Offline all
there are in requests of `--rows`, and Server one row each, with Poisson arrivals, at half of the rate that SingleStream
had, if `--rate` gives no other. Answers are checked. Writes docs/bench/loadgen.md and .json; the exit status is 1 if
LoadGen calls a run invalid. These are LoadGen's rules and figures, with shorter runs and other models than MLPerf's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import urllib.request
from contextlib import ExitStack
from typing import Any

from app.models.repository import SETS
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError, starling
from loadtest.loadgen.scenarios import Scenario, play, samples_per_second
from loadtest.loadgen.system import Library

SAMPLES = 1024  # of the library
AT_ONCE = 4  # requests of Offline: a queue holds so many of the default rows, and more would be refused
_SPARE = 1.3  # a run of Offline is too short if more samples a second are answered than were expected
_TRIES = 3
_KNOWN = {**SETS["demo"], **SETS["bench"]}


def loadgen() -> Any:
    """LoadGen's module. Raises MeasurementError where it is not installed."""
    try:
        return importlib.import_module("mlperf_loadgen")
    except ModuleNotFoundError:
        raise MeasurementError("LoadGen is not installed: pip install mlcommons-loadgen") from None


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    module = loadgen()
    figures: Data = {
        "settings": {
            "seconds": chosen.seconds, "rows": chosen.rows, "connections": chosen.connections,
            "latency_ms": chosen.latency_ms, "at_once": AT_ONCE,
        },
        "models": {},
    }  # fmt: skip
    with ExitStack() as stack:
        address = chosen.server or _started(chosen.models, stack)
        for model in chosen.models:
            with urllib.request.urlopen(f"http://{address}/v2/models/{model}", timeout=30) as answer:
                library = Library(json.load(answer), SAMPLES)
            figures["models"][model] = _scenarios(module, address, library, chosen, run)
    return figures


def _started(models: list[str], stack: ExitStack) -> str:
    flags = [word for model in models for word in ("--model", f"{model}={_KNOWN[model]}")]
    server = stack.enter_context(starling(flags))
    server.wait_ready()
    return f"{LOOPBACK}:{server.port}"


def _scenarios(module: Any, address: str, library: Library, chosen: argparse.Namespace, run: Run) -> dict[str, Any]:
    """Each scenario's summary. What a later one expects is what an earlier one has shown."""

    def played(name: str, rate: float, connections: int = 1, seconds: float = chosen.seconds) -> float:
        scenario = Scenario(name, seconds, rate, connections, chosen.rows, chosen.latency_ms)
        found[name] = play(module, scenario, address, library)
        reached = samples_per_second(found[name])
        run.say(f"{name}: {found[name]['Result is']}, {reached:,.0f} samples/s")
        return reached

    found: dict[str, Any] = {}
    single = played("SingleStream", 1.0)
    several = played("MultiStream", 1.0)
    reached = played("Offline", 2 * several, AT_ONCE, 1.0)  # it issues all samples at once: how many take so long?
    for _ in range(_TRIES):
        reached = played("Offline", _SPARE * reached, AT_ONCE)
        if found["Offline"]["Result is"] == "VALID":
            break
    played("Server", chosen.rate or single / 2, chosen.connections)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="HOST:PORT", help="a running server [one is started]")
    parser.add_argument("--models", nargs="+", default=["echo", "digits"], help="[echo digits]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each scenario, at least [10]")
    parser.add_argument("--rows", type=int, default=256, help="of a request, at most [256]")
    parser.add_argument("--connections", type=int, default=16, help="of Server [16]")
    parser.add_argument("--rate", type=float, help="samples/s of Server [half of SingleStream's]")
    parser.add_argument("--latency-ms", type=float, default=100.0, help="Server's bound at 99 %% [100]")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    unknown = [model for model in chosen.models if model not in _KNOWN]
    if unknown and not chosen.server:
        parser.error(f"--models: expected some of {', '.join(_KNOWN)}, got {', '.join(unknown)}")


def missed(data: Data) -> list[str]:
    """Runs that LoadGen calls invalid."""
    return [
        f"{model}, {name}: invalid"
        for model, scenarios in data["models"].items()
        for name, found in scenarios.items()
        if found["Result is"] != "VALID"
    ]


PAGE = Page("loadgen", __name__, missed)
EXPERIMENT = Experiment(PAGE, "loadtest.loadgen", __doc__, measure, options, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
