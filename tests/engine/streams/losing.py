"""Loses a GPU for good, which only the end of the process mends, and prints how its calls ended.

`python -m tests.engine.streams.losing graphs|eager`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from typing import Any

import torch
from torch import nn

from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.streams.cuda import CudaRuntime, device_index
from app.scheduler.scheduler import Scheduler

from ..places import Place
from ..rig import ask, make_model, rows_of

LAST = 66.0


class Breaks(nn.Module):
    """y = 2 x + 1. A row of 66 reads beyond the end of a table, which stops a GPU's kernel with an error that lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1 + self.table[(x[:, :1] == LAST).long() * 1_000_000]


async def lose(place: Place, model: nn.Module) -> dict[str, Any]:
    """Ten calls, then one that breaks the device with thirty beside it: how these end, and why the device is dead."""
    device = place.device()
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        served = await engine.start(make_model(model, max_batch=4))
        answered = await asyncio.gather(*(ask(served, rows_of(float(number))) for number in range(10)))
        values = [LAST, *range(100, 130)]
        ends = await asyncio.gather(*(ask(served, rows_of(float(value))) for value in values), return_exceptions=True)
        later = await asyncio.gather(ask(served, rows_of(1.0)), return_exceptions=True)
        kinds = Counter(type(end).__name__ for end in (*ends, *later))
        return {"answered": len(answered), "ends": kinds, "dead": device.dead() or engine.driver.lost}


def main() -> None:
    told = asyncio.run(lose(Place(sys.argv[1], CudaRuntime(device_index("auto"))), Breaks()))
    print(json.dumps(told), flush=True)
    os._exit(0)  # what a server does, too: nothing waits for the device


if __name__ == "__main__":
    main()
