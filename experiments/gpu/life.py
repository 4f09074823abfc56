"""What happens while a server lives: a reload under load, two models at once, rows that run out of memory, bulk calls.

Nothing may be lost, and answers to other calls may not come much later.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from app.contract import Klass, Lease, Model, ModelCall, awaited
from app.engine.engine import Engine
from app.engine.served_model import ServedModel
from experiments.gpu.blocks import Block, Data
from experiments.gpu.engines import Setup, engine_of, model_of, ready, started, stopped, tensor
from experiments.gpu.loads import Closed, Leases, Rate, Rows, closed_loop, ids, open_loop
from experiments.gpu.networks import TOKENS, whole_bert
from experiments.gpu.policies import bert_model
from loadtest.generator.run import in_loop

BULK_CALLS = 64
_RATE = 200.0
_TOO_MUCH = 1 << 50  # bytes


class Greedy(nn.Module):
    """y = 2 x + 1; a row that begins with -1 asks for more memory than there is. It looks, so it has no graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] == -1).any()):
            torch.empty(_TOO_MUCH, dtype=torch.uint8, device=x.device)
        return x * self.scale + 1


def measure(block: Block) -> None:
    in_loop(_all(block))


async def _all(block: Block) -> None:
    largest = 4 if block.quick else 32
    async with engine_of(block, Setup((largest, largest), keeps_one=True)) as engine:
        first = _Current(await started(engine, _bert(block, largest, "a")))
        other = await started(engine, _bert(block, largest, "b"))
        await ready(engine, first.served, 1.0)
        calls = ids(32, TOKENS)
        for name, part in (
            ("reload", lambda: _reload(block, engine, first, calls, largest)),
            ("out of memory", lambda: _out_of_memory(block, engine, first, calls)),
            ("two models", lambda: _two(block, first, other, calls, largest)),
            ("bulk calls", lambda: _bulk(block, first, other, calls)),
        ):
            if block.fits(name, 6):
                with block.noting(name):
                    block.found[name] = await part()


def _bert(block: Block, largest: int, name: str, version: str = "1") -> Model:
    # On the CPU, as from files; tables of two workers would take half a minute to solve beside the load.
    model = bert_model(whole_bert(block.quick), block.quick, largest, policy="no_wait")
    return replace(model, info=replace(model.info, name=name, version=version))


class _Current:
    """The version of a model that serves now: the interface of a served model that a load needs."""

    def __init__(self, served: ServedModel) -> None:
        self.served = served

    def lease(self, asked: ModelCall) -> Lease:
        return self.served.lease(asked)


async def _reload(block: Block, engine: Engine, current: _Current, calls: list[Rows], largest: int) -> Data:
    """Latencies at a steady rate, before and while versions replace one another: loaded, captured, drained, freed."""
    seconds = block.seconds(2.0)
    before = await open_loop(current, calls, Rate(_RATE), seconds)
    over = asyncio.Event()

    async def replaced() -> list[float]:
        took: list[float] = []
        while not took or not over.is_set():
            begun = time.monotonic()
            model = await asyncio.to_thread(_bert, block, largest, "a", str(2 + len(took)))
            old, current.served = current.served, await started(engine, model)
            await stopped(engine, old)
            took.append(round(time.monotonic() - begun, 2))
        return took

    reloads = asyncio.create_task(replaced())
    during = await open_loop(current, calls, Rate(_RATE, 1), 2 * seconds)
    over.set()
    return {"before": before, "during": during, "reloads_s": await reloads}


async def _out_of_memory(block: Block, engine: Engine, served: Leases, calls: list[Rows]) -> Data:
    """One call in ten runs out of memory. The others must get their own answers, and so must another model's."""
    model = model_of(
        Greedy(), [tensor("x", "FP32", 2)], [tensor("y", "FP32", 2)], name="greedy", policy="no_wait", max_batch=8
    )
    greedy = await started(engine, model)
    right, failed, wrong = 0, 0, 0

    async def ask(number: int) -> None:
        nonlocal right, failed, wrong
        first = -1.0 if number % 10 == 0 else float(number)
        row = np.array([[first, 0.5]], np.float32)
        try:
            with greedy.lease(ModelCall(1, [row])) as lease:
                answer = await awaited(lease)
        except Exception:
            failed += 1
            return
        if np.allclose(answer.outputs[0], row * 2 + 1, rtol=1e-2):
            right += 1
        else:
            wrong += 1

    beside = asyncio.create_task(open_loop(served, calls, Rate(_RATE, 2), block.seconds(1.0)))
    await asyncio.gather(*(ask(number) for number in range(100)))
    found = {"right": right, "failed": failed, "wrong": wrong, "beside": await beside}
    await stopped(engine, greedy)
    return found


async def _two(block: Block, first: Leases, other: ServedModel, calls: list[Rows], largest: int) -> Data:
    """Rows a second of one model alone, and of two at once."""
    seconds = block.seconds(1.5)
    alone = await closed_loop(first, calls, 4 * largest, seconds)
    both = await asyncio.gather(*(closed_loop(one, calls, 4 * largest, seconds) for one in (first, other)))
    return {"alone": alone, "both": list(both)}


async def _bulk(block: Block, first: Leases, other: ServedModel, calls: list[Rows]) -> Data:
    """Latencies at a steady rate, alone and with 64 best-effort calls of another model always in flight."""
    seconds = block.seconds(2.0)
    alone = await open_loop(first, calls, Rate(_RATE, 3), seconds)
    async with Closed(other, calls, BULK_CALLS, Klass.BEST_EFFORT) as load:
        beside = await open_loop(first, calls, Rate(_RATE, 4), seconds)
    return {"alone": alone, "beside": beside, "bulk": load.found}
