"""What a GPU brings, in one call of nine minutes: `python -m experiments.gpu`. Writes docs/bench/gpu.md and gpu.json.

First the tests marked `cuda`: if they fail, no figure means anything. Then, for three models of this repository over
HTTP with binary inputs of one row:

    rows a second   256 requests always in flight, against the bare model in a loop at the largest batch
    memory          of the device, by number of workers, with and without CUDA graphs
    latency         Poisson arrivals at 30 and 70 % of the fewest rows a second that a policy answered
    classes         the same at 30 % with 64 best-effort requests always in flight beside it

One server runs at a time. What does not fit into the time is left out and named on the page. `--device cpu --quick`
tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.bench.plan import Plan
from app.bench.run import Session, in_loop
from app.bench.stats import Repeat, percentile
from experiments.common.live import right
from loadtest.bench.reference_servers import TorchLoop
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import ROOT, ZOO
from loadtest.common.servers import MeasurementError, Server, clean_environment, starling

MODELS = ("mlp", "encoder", "resnet18")
LARGEST = 32
#: By name: flags beyond those that all share. The first is the default.
WAYS = {
    "adaptive": (),
    "adaptive, two workers": ("--workers", f"{LARGEST},{LARGEST}"),
    "adaptive, no graphs": ("--no-cuda-graphs",),
    "no_wait": ("--policy", "no_wait"),
    "window": ("--policy", "window", "--max-delay-ms", "5"),
    "ebird": ("--policy", "ebird"),
}
COMPARED = ("adaptive", "no_wait", "window", "ebird")
SHARES = (0.3, 0.7)
IN_FLIGHT, BULK = 256, 64
_SERVER_S = 25.0  # to start one, capture its graphs and measure its batch times
_MEMORY = re.compile(rb"^nv_gpu_memory_used_bytes\S* ([0-9.e+]+)$", re.MULTILINE)


class Ends:
    """When the call has to be over. `allows` notes what does not fit any more."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self.left_out: list[str] = []

    def allows(self, what: str, seconds: float) -> bool:
        fits = time.monotonic() + seconds < self._at
        if not fits:
            self.left_out.append(what)
        return fits


@dataclass(frozen=True)
class Bench:
    """One model's servers. `profiles`: where each finds the batch times that the first has measured."""

    model: str
    device: str
    seconds: float
    profiles: Path

    @contextmanager
    def serving(self, way: str) -> Iterator[Server]:
        flags = ("--model", f"{self.model}={ZOO / self.model}", "--device", self.device, "--max-batch", str(LARGEST))
        kept = ("--profile-dir", str(self.profiles), "--no-ui", "--no-docs")
        with starling((*flags, *kept, *WAYS[way])) as server:
            server.wait_ready()
            time.sleep(2 * self.seconds)  # batch times are measured while nobody asks
            yield server

    def plan(self, server: Server, **options: Any) -> Plan:
        """Answers are checked for their shapes: TF32 and batch sizes change the last digits."""
        return Plan(
            url=server.url, model=self.model, payload="binary", check="shapes",
            connections=2 * IN_FLIGHT, timeout_s=30.0, max_lag_ms=5.0, **options,
        )  # fmt: skip

    def rows_per_s(self, server: Server) -> float:
        async def ask() -> Repeat:
            async with Session(self.plan(server, concurrency=IN_FLIGHT)) as session:
                await session.once(session.plan, 1, self.seconds / 2)
                return await session.once(session.plan, 0, self.seconds)

        run = right(self.model, in_loop(ask()))
        return len(run.completed) / run.elapsed_s

    def latency(self, server: Server, rate: float, *, bulk: bool = False) -> Data:
        """Of requests at this rate, in ms; `bulk`: best-effort requests are in flight beside them."""

        async def ask() -> tuple[Repeat, Repeat | None]:
            async with AsyncExitStack() as stack:
                realtime = await stack.enter_async_context(Session(self.plan(server, rate=rate)))
                await realtime.once(realtime.plan, 1, self.seconds / 2)
                if not bulk:
                    return await realtime.once(realtime.plan, 0, self.seconds), None
                plan = self.plan(server, concurrency=BULK, headers=("X-Class: best_effort",))
                other = await stack.enter_async_context(Session(plan))
                beside = asyncio.create_task(other.once(plan, 0, 1.2 * self.seconds))
                await asyncio.sleep(0.1 * self.seconds)
                return await realtime.once(realtime.plan, 0, self.seconds), await beside

        run, beside = in_loop(ask())
        done = right(self.model, run).completed
        found = {"rate": rate, "mean_ms": float(done.mean()) / 1e6, "p99_ms": percentile(done, 0.99)}
        if beside is not None:
            found["bulk_per_s"] = len(right(self.model, beside).completed) / beside.elapsed_s
        return found


def memory_of(server: Server) -> float | None:
    """MiB of the device in use, by the server's own gauge; None where it has none."""
    found = _MEMORY.search(server.call("GET", "/metrics")[2])
    return None if found is None else float(found[1]) / 2**20


def tested() -> Data:
    """The tests marked `cuda`: pytest's last line, and whether they passed. None at all is a failure."""
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-p", "no:cacheprovider", "tests/engine"]
    ended = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), timeout=240, capture_output=True, text=True, check=False
    )
    lines = ended.stdout.strip().splitlines() or [ended.stderr[-200:]]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"passed": ended.returncode == 0, "last": lines[-1].strip("= "), "failed": failed}


def of_model(bench: Bench, ends: Ends, run: Run) -> Data:
    """All figures of one model. A way that fails is named, and ends no other."""
    found: Data = {"rows_per_s": {}, "memory_mib": {}, "latency": {}, "classes": {}, "failed": {}}
    with TorchLoop(bench.model, LARGEST, 1, bench.device) as loop:
        loop.wait_ready()
        found["bare"] = loop.rows_per_second(bench.seconds)
    for way in WAYS:
        if ends.allows(f"{bench.model}, {way}", _SERVER_S + 4 * bench.seconds):
            with noted(found, way, run), bench.serving(way) as server:
                found["rows_per_s"][way] = bench.rows_per_s(server)
                found["memory_mib"][way] = memory_of(server)
                run.say(f"{bench.model}, {way}: {found['rows_per_s'][way]:.0f} rows/s")
    reached = [found["rows_per_s"][way] for way in COMPARED if way in found["rows_per_s"]]
    if not reached:
        return found
    rates = [share * min(reached) for share in SHARES]
    for way in COMPARED:
        if ends.allows(f"{bench.model}, latency of {way}", _SERVER_S + 6 * bench.seconds):
            with noted(found, way, run), bench.serving(way) as server:
                found["latency"][way] = [bench.latency(server, rate) for rate in rates]
                if way == COMPARED[0]:
                    found["classes"] = bench.latency(server, rates[0], bulk=True)
    return found


@contextmanager
def noted(found: Data, way: str, run: Run) -> Iterator[None]:
    """A server that does not start, or answers wrongly, is a finding."""
    try:
        yield
    except (MeasurementError, ValueError, OSError) as exc:
        found["failed"][way] = str(exc)[:500]
        run.say(f"FAILED: {way}: {exc}")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise MeasurementError("there is no CUDA device here; --device cpu --quick tries the script")
    ends = Ends(chosen.limit_s)
    figures: Data = {"device": name_of(chosen.device), "seconds": chosen.seconds, "models": {}}
    if chosen.device == "cuda":
        figures["tests"] = tested()
        run.say(f"tests: {figures['tests']['last']}")
    with tempfile.TemporaryDirectory(prefix="starling-gpu-") as profiles:
        for model in MODELS[:1] if chosen.quick else MODELS:
            bench = Bench(model, chosen.device, chosen.seconds, Path(profiles))
            figures["models"][model] = of_model(bench, ends, run)
            figures["left_out"] = ends.left_out
            run.keep(figures)
    return figures


def name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "none: tried on the CPU"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="one model")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a run [2]")
    parser.add_argument("--limit-s", type=float, default=560.0, help="begin nothing that would end later [560]")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    if chosen.device == "cpu" and chosen.out.resolve().is_relative_to(ROOT / "docs"):
        parser.error("--out: figures of a CPU must not enter docs/bench; give another folder")


PAGE = Page("gpu", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.gpu", __doc__, measure, options, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
