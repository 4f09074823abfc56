"""What tables and measuring take of a server's first 30 s: `python -m experiments.costs.first_seconds`.

Seven models, each with some calls a second from the moment that the server is ready (`--rate 0`: none). The CPU time
is that of the child process that solves tables, and of the batches that measure.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from pathlib import Path

from loadtest.common.command import below
from loadtest.common.paths import ROOT
from loadtest.common.servers import Server, cpu_seconds, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session, in_loop

MODELS = {
    "mlp": "16",
    "encoder": "16",
    "resnet18": "16",
    "lstm": "16",
    "generate": "16",
    "writer": "16",
    "digits": "16",
}  # the lengths of their rows


async def loaded(server: Server, rate: float, seconds: float) -> None:
    """Poisson arrivals at each model."""

    async def one(model: str, lengths: str) -> None:
        plan = BenchPlan(url=server.url, model=model, lengths=lengths, rate=rate, duration_s=seconds, repeats=1)
        async with Session(plan) as session:
            await session.once(plan, 0, seconds)

    if rate:
        await asyncio.gather(*(one(model, lengths) for model, lengths in MODELS.items()))
    else:
        await asyncio.sleep(seconds)


def total(page: str, name: str) -> float:
    """The sum of a counter over its labels."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))


def measure(rate: float, seconds: float, flags: list[str]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch) / "models"
        models.mkdir()
        for model in MODELS:
            folder = ROOT / ("app/models/demo" if model == "digits" else "loadtest/models") / model
            (models / model).symlink_to(folder)
        with starling([str(models), "--profile-dir", scratch, *flags]) as server:
            return measured(server, rate, seconds)


def measured(server: Server, rate: float, seconds: float) -> str:
    server.wait_ready()
    in_loop(loaded(server, rate, seconds))
    pids = below(server.process.pid)[1:]
    solving = sum(cpu_seconds(pid) or 0.0 for pid in pids)
    page = server.call("GET", "/metrics")[2].decode()
    measuring, batches = (total(page, f"starling_profile_{name}_total") for name in ("seconds", "batches"))
    return f"tables {solving:.2f} s in {len(pids)} process(es), measuring {measuring:.2f} s in {batches:.0f} batches"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=10, help="calls a second of each model [10]")
    parser.add_argument("--seconds", type=float, default=30, help="[30]")
    parser.add_argument("flags", nargs="*", help="of the server")
    given = parser.parse_args()
    print(measure(given.rate, given.seconds, given.flags))
    return 0


if __name__ == "__main__":
    sys.exit(main())
