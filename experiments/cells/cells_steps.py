"""The parts of `cells` that count steps: in this process, with the engine and a CPU device, without HTTP.

How many steps a row of length 1 waits that arrives in the middle of a batch of length 300, and what a step costs the
processor beyond the cell itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from app import process
from app.contract import Answer, Checks, Model, ModelCall, ModelInfo, ModelSource, Served, awaited
from app.engine.cpu.device import CpuDevice
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.models.description.config import model_info, read_config
from app.models.recurrent.cells import CellModel, recurrent_model
from app.models.recurrent.recurrent import Recurrent
from app.models.recurrent.rnn import by_its_layer
from app.scheduler.scheduler import Scheduler
from loadtest.common.paths import ZOO
from loadtest.models.lstm.model import build

ROWS = 32  # of the batch whose steps are timed
LONG, LONG_ROWS = 300, 16  # the batch that is under way when another row comes
STEPS = 200  # of a timed batch
_TOKENS = np.random.default_rng(0).integers(0, 10_000, (1, LONG))


class Counted(nn.Module):
    """A cell that counts its steps, and calls `reached` behind number `mark`, on the thread that makes the step."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell
        self.steps = 0
        self.mark = -1
        self.reached: Callable[[], object] = lambda: None

    def start(self, ids: torch.Tensor, *, lengths: torch.Tensor | None) -> Any:
        return self.cell.start(ids, lengths=lengths)

    def step(self, x: torch.Tensor, state: Any) -> Any:
        return self._count(1, self.cell.step(x, state))

    def longest_stride(self, rows: int, left: int) -> int:
        return int(self.cell.longest_stride(rows, left))

    def stride(self, x: torch.Tensor, state: Any) -> Any:
        return self._count(len(x), self.cell.stride(x, state))

    def _count(self, steps: int, result: Any) -> Any:
        self.steps += steps
        if self.steps - steps < self.mark <= self.steps:
            self.reached()
        return result

    def finish(self, state: Any, ys: Any, lengths: torch.Tensor) -> Any:
        return self.cell.finish(state, ys, lengths)


class Network:
    """`lstm` with so many layers, its steps counted: by its cell, and the very same run whole."""

    def __init__(self, layers: int, policy: str) -> None:
        folder = ZOO / "lstm"
        source = ModelSource(f"lstm{layers}-{policy}", 1, folder)
        info = model_info(read_config(folder), source, {"policy": policy, "max_batch": ROWS}, None)
        declared = by_its_layer(build(layers=layers).eval(), info)
        self.counted = Counted(declared.cell)
        call, called_with = recurrent_model(Recurrent(self.counted, declared.state), info)
        self.call: CellModel = call.eval()
        self.cells = Model(called_with, self.call, checks=Checks(row_check="off"))
        # a device takes a function for a model of one piece
        whole: ModelInfo = replace(called_with, name=f"{called_with.name}-whole")
        self.whole = Model(whole, lambda *inputs: self.call(*inputs), checks=Checks(row_check="off"))

    def bare(self, ids: torch.Tensor) -> None:
        """A loop over the cell alone, with what stands before and behind it."""
        lengths = torch.full((len(ids),), ids.shape[1])
        x, state = self.counted.start(ids, lengths=lengths)
        for step in range(ids.shape[1]):
            _, state = self.counted.step(x[:, step], state)
        self.counted.finish(state, None, lengths)


def _submitted(served: Served, length: int) -> asyncio.Future[Answer]:
    """A row of this length, on its way."""
    lease = served.lease(ModelCall(1, lengths={"tokens": length}))
    lease.write(0, _TOKENS[:, :length])
    answer = awaited(lease)
    answer.add_done_callback(lambda _: lease.close())
    return answer


async def joined(network: Network, served: Served) -> tuple[int, float]:
    """Steps and milliseconds from the arrival of a row of one step, in the middle of a long batch, to its answer."""
    loop, counted = asyncio.get_running_loop(), network.counted
    middle = loop.create_future()
    counted.reached = lambda: loop.call_soon_threadsafe(middle.set_result, None)
    counted.mark = counted.steps + LONG // 2
    under_way = [_submitted(served, LONG) for _ in range(LONG_ROWS)]
    await middle
    steps, began = counted.steps, time.perf_counter()
    await _submitted(served, 1)
    waited = counted.steps - steps, (time.perf_counter() - began) * 1e3
    await asyncio.gather(*under_way)
    return waited


async def together(served: Served) -> float:
    """CPU microseconds of a step in this process: ROWS rows that begin and end together."""
    begin = time.process_time_ns()
    await asyncio.gather(*(_submitted(served, STEPS) for _ in range(ROWS)))
    return (time.process_time_ns() - begin) / 1e3 / STEPS


async def in_turn(network: Network, served: Served) -> float:
    """The same where about one row leaves and another joins at each step; all the time there are ROWS rows."""
    turns = STEPS // ROWS

    async def one(first: int) -> None:
        for length in (first, *[ROWS] * (turns - 1), ROWS - first):
            if length:
                await _submitted(served, length)

    before, begin = network.counted.steps, time.process_time_ns()
    await asyncio.gather(*(one(1 + number) for number in range(ROWS)))
    return (time.process_time_ns() - begin) / 1e3 / (network.counted.steps - before)


def bare(network: Network) -> float:
    """CPU microseconds of a step of ROWS rows in a loop over the cell."""
    ids = torch.from_numpy(_TOKENS[:, :STEPS]).repeat(ROWS, 1)
    begin = time.process_time_ns()
    with torch.inference_mode():
        network.bare(ids)
    return (time.process_time_ns() - begin) / 1e3 / STEPS


async def measure(rounds: int, policy: str, layers: Sequence[int] = (2, 1)) -> dict[str, Any]:
    """Everything in turn, so often, on one worker with one thread: medians, and for the joins each."""
    process.keep_freed_memory()  # as the server does, and so the next
    process.switch_threads_often()
    torch.set_num_threads(1)
    device = CpuDevice((ROWS,), 1, 1)
    found: dict[str, Any] = {"join": {"cells": [], "whole": []}, "costs": []}
    joins = Network(2, policy)
    # `late` runs all rows together, so that a step is one of ROWS rows; `adaptive` runs fewer where that is as fast.
    networks = [Network(count, "late") for count in layers]
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        joining, whole = await engine.start(joins.cells), await engine.start(joins.whole)
        cells = [await engine.start(network.cells) for network in networks]
        for _ in range(rounds):
            found["join"]["cells"].append(await joined(joins, joining))
            found["join"]["whole"].append(await joined(joins, whole))
        for count, network, served in zip(layers, networks, cells, strict=True):
            times: dict[str, list[float]] = {"bare": [], "together": [], "in_turn": []}
            for _ in range(rounds + 1):  # the first warms up
                times["bare"].append(bare(network))
                times["together"].append(await together(served))
                times["in_turn"].append(await in_turn(network, served))
            found["costs"].append({"layers": count, **{name: median(some[1:]) for name, some in times.items()}})
    return found
