"""Requests to a decoder of which a third leave: do all places come back, and is memory flat?
`python -m experiments.writing.leaving`.

The model `writer` in this process, without HTTP. Prints places and memory as it goes; status 1 if one is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

import numpy as np

from app.engine.cpu.device import CpuDevice
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.errors import StarlingError
from app.models.loading import load
from app.models.repository import Repository
from app.scheduler.scheduler import Scheduler

AT_ONCE = 48
MOST = 40  # tokens


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


async def one(served: ServedModel, chosen: random.Random) -> bool:
    """A request; whether it was answered."""
    ids = [chosen.randrange(2, 200) for _ in range(chosen.randrange(1, 40))]
    leaves = chosen.random() < 1 / 3
    with served.lease(
        1, lengths={"tokens": len(ids)}, parameters={"max_new_tokens": chosen.randrange(1, MOST)}
    ) as lease:
        lease.write(0, np.array([ids], np.int64))
        try:
            await asyncio.wait_for(lease.run(), chosen.random() * 0.3 if leaves else None)
        except (TimeoutError, StarlingError):
            return False
        return True


async def run(requests: int) -> int:
    chosen = random.Random(0)
    device = CpuDevice((32,), threads=1, cores=1)
    (source,) = Repository("bench").sources("writer")
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        served = await engine.start(load(source))
        assert isinstance(served, ServedModel)
        assert served.activations is not None
        done = answered = 0
        while done < requests:
            answers = await asyncio.gather(*(one(served, chosen) for _ in range(AT_ONCE)))
            done, answered = done + len(answers), answered + sum(answers)
            if done % (AT_ONCE * 20) == 0:
                print(f"{done} requests, {answered} answered: {resident_mib():.0f} MiB resident", flush=True)
        lost = served.activations.rows
        print(f"{done} requests, {answered} answered: {lost} places in use, {resident_mib():.0f} MiB resident")
    return int(lost > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="how many [10000]")
    sys.exit(asyncio.run(run(parser.parse_args().requests)))
