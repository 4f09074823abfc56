"""Requests to a decoder of which a third leave: do all places come back, and is memory flat?
`python -m experiments.writing.leaving`.

The model `writer` in this process, without HTTP, whose requests read their texts piece by piece. Those that leave do so
before they begin, or with one of their pieces. Writes docs/bench/writing-leaving.md and .json.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from app.contract import ModelCall, awaited
from app.engine.cpu.device import CpuDevice
from app.engine.cpu.places import Places
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.models.loading import load
from app.models.repository import Repository
from app.scheduler.scheduler import Scheduler
from loadtest.common.experiment import Experiment, Run
from loadtest.common.page import Data, Page

LARGEST, AT_ONCE = 32, 48
READ, WRITTEN = (1, 39), (1, 39)  # tokens of a request
SAMPLES = 20  # of memory


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


async def one(served: ServedModel, chosen: random.Random) -> bool:
    """A request; whether it was answered."""
    ids = [chosen.randrange(2, 200) for _ in range(chosen.randint(*READ))]
    written = chosen.randint(*WRITTEN)
    leaves = asyncio.Event()
    last = chosen.randrange(written) if chosen.random() < 1 / 3 else -1  # the piece with which it leaves; 0: no piece

    def read(row: int, text: Any, tokens: int) -> None:
        if 0 < last <= tokens:
            leaves.set()

    with served.lease(ModelCall(1, lengths={"tokens": len(ids)}, parameters={"max_new_tokens": written})) as lease:
        lease.on_piece = read
        lease.write(0, np.array([ids], np.int64))
        answer = awaited(lease)
        if last < 0:
            await answer
            return True
        if last == 0:
            leaves.set()
        left = asyncio.create_task(leaves.wait())
        either: list[asyncio.Future[Any]] = [answer, left]
        await asyncio.wait(either, return_when="FIRST_COMPLETED")
        left.cancel()
        return answer.done()


async def several(served: ServedModel, chosen: random.Random, left: list[int], answered: list[int]) -> None:
    """A client that sends one request after another."""
    while left[0] > 0:
        left[0] -= 1
        was_answered = await one(served, chosen)  # first: others count meanwhile
        answered[0] += was_answered


async def run(requests: int, run: Run) -> Data:
    chosen = random.Random(0)
    device = CpuDevice((LARGEST,), threads=1, cores=1)
    (source,) = Repository("bench").sources("writer")
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        served = await engine.start(load(source))
        assert isinstance(served, ServedModel)
        places = served.activations
        assert isinstance(places, Places)
        answered, done = [0], 0
        samples = []
        for number in range(SAMPLES):
            share = requests * (number + 1) // SAMPLES
            left = [share - done]
            await asyncio.gather(*(several(served, chosen, left, answered) for _ in range(AT_ONCE)))
            done = share
            await served_idle(served)
            samples.append({"requests": done, "answered": answered[0], "places": places.rows, "mib": resident_mib()})
            run.say(f"{done} requests, {answered[0]} answered: {places.rows} places, {samples[-1]['mib']:.0f} MiB")
        slab = places.reserved * places.row_bytes / (1 << 20)
        return {"samples": samples, "slots": served.pool.used, "reserved": places.reserved, "slab_mib": slab}


async def served_idle(served: ServedModel) -> None:
    """Until rows whose requests have left are in no unit: one unit runs at a time, so an answer comes behind them."""
    with served.lease(ModelCall(1, lengths={"tokens": 1}, parameters={"max_new_tokens": 1})) as lease:
        lease.write(0, np.array([[5]], np.int64))
        await awaited(lease)


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10_000, help="how many [10000]")


def measure(chosen: argparse.Namespace, run_: Run) -> Data:
    found = asyncio.run(run(chosen.requests, run_))
    settings = {"requests": chosen.requests, "at_once": AT_ONCE, "largest": LARGEST, "most": WRITTEN[1]}
    return {"settings": settings, **found}


GROWTH = 0.02  # of memory, from the first tenth of the requests to their end


def grown(data: Data) -> float:
    """The resident memory at the end over that after the first tenth of the requests, less 1."""
    samples = data["samples"]
    first = next(one for one in samples if one["requests"] * 10 >= samples[-1]["requests"])
    return float(samples[-1]["mib"] / first["mib"] - 1)


def missed(data: Data) -> list[str]:
    lines = []
    if (lost := max(one["places"] for one in data["samples"])) or data["slots"]:
        lines.append(f"{lost} places and {data['slots']} slots are in use when no request is there, target 0")
    if (growth := grown(data)) > GROWTH:
        lines.append(f"memory grew by {growth:.1%}, target {GROWTH:.0%}")
    return lines


PAGE = Page("writing-leaving", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.writing.leaving", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
