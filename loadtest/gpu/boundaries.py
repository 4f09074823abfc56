"""What boundaries cost on the device: a cut between two stages, a step of a cell, a row that joins one.

Batches go through the engine without HTTP and without a scheduler, one unit at a time; what a unit costs beyond
computing is the host's: its launch, its report and the thread that waits for it.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from app.contract import Batching, Model, ModelInfo, TensorSpec
from app.engine.devices.base import Completion, DeviceOptions, Executor, Job
from app.engine.devices.streams.device import StreamDevice
from app.engine.profiling.warmup import try_batch
from app.models import Recurrent, Staged
from app.models.cells import recurrent_model
from app.scheduler.types import WorkerSpec

from .driven_device import Failed
from .platforms import Platform

LAYERS = 2  # of the LSTM


@dataclass(frozen=True, slots=True)
class Scale:
    """`sizes`: rows of a batch. `width` of all layers, `steps` of a row, `stages` of the network that is cut."""

    sizes: tuple[int, ...] = (1, 8, 32, 128)
    width: int = 512
    steps: int = 64
    stages: int = 4
    repeats: int = 50


def boundaries(platform: Platform, scale: Scale) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    for graphs in (True, False):
        cells += _cuts(platform, scale, graphs)
        cells += _steps(platform, scale, graphs)
    return {"stages": scale.stages, "width": scale.width, "steps": scale.steps, "cells": cells}


def _cuts(platform: Platform, scale: Scale, graphs: bool) -> list[dict[str, Any]]:
    """Microseconds of a batch, from its push to its report: of the network in one piece and cut into its layers."""
    model = network(scale)
    found: dict[str, list[list[float]]] = {}
    for name, one in (("whole", replace(model, stages=(), again=())), ("cut", model)):
        with opened(platform, one, scale, graphs) as driven:
            found[name] = [[driven.whole(size) for _ in range(scale.repeats)] for size in scale.sizes]
    return [
        {"what": "cut", "graphs": graphs, "size": size, "whole_us": whole, "cut_us": cut}
        for size, whole, cut in zip(scale.sizes, found["whole"], found["cut"], strict=True)
    ]


def _steps(platform: Platform, scale: Scale, graphs: bool) -> list[dict[str, Any]]:
    """Microseconds of a step: on the host from push to report, and on the device; and of one that a row joins."""
    cells = []
    with opened(platform, lstm(scale), scale, graphs) as driven:
        for size in scale.sizes:
            host: list[float] = []
            device: list[float] = []
            joined: list[float] = []
            for _ in range(max(1, scale.repeats // scale.steps)):
                rows = driven.slots[:size]
                driven.unit(rows[:-1] or rows)
                _, computed = driven.unit(rows)
                joined += [computed] if size > 1 else []  # all but the last had begun
                for _ in range(scale.steps - 3):
                    whole, computed = driven.unit(rows)
                    host.append(whole)
                    device.append(computed)
                driven.end()
            cells.append(
                {"what": "step", "graphs": graphs, "size": size, "host_us": host, "device_us": device,
                 "join_us": joined}
            )  # fmt: skip
    return cells


class Driven:
    """A device with one worker and one model, whose slots hold random rows."""

    def __init__(self, device: StreamDevice, executor: Executor, scale: Scale) -> None:
        self.device, self.executor = device, executor
        self.slots = list(executor.pool.take(max(scale.sizes)))
        self._ended: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        device.start(self._ended.put)
        torch.manual_seed(0)
        for index, spec in enumerate(executor.model.info.client_inputs):
            values = torch.randn((len(self.slots), *spec.bounds)).numpy()
            executor.pool.set_lengths(self.slots, {axis: scale.steps for axis in spec.axes if axis})
            executor.pool.write(self.slots, index, values)
        device.arrive(executor, self.slots)

    def unit(self, slots: Sequence[int], stage: int = 0) -> tuple[float, float]:
        """Microseconds of a unit, from push to report and on the device."""
        begin = time.perf_counter_ns()
        self.device.push(0, Job(0, self.executor, slots, len(slots), stage))
        completion = self._ended.get()
        end = time.perf_counter_ns()
        if completion.ran is None:
            raise Failed(completion.message)
        return (end - begin) / 1e3, completion.ran.infer_ns / 1e3

    def whole(self, size: int) -> float:
        """Microseconds of a batch through all stages, each pushed when the one before has been reported."""
        slots = self.slots[:size]
        taken = sum(self.unit(slots, stage)[0] for stage in range(max(1, len(self.executor.model.stages))))
        self.end()
        return taken

    def end(self) -> None:
        """Nothing of any row is kept."""
        if self.executor.activations is not None:
            self.executor.activations.let_go(self.slots)


@contextmanager
def opened(platform: Platform, model: Model, scale: Scale, graphs: bool) -> Iterator[Driven]:
    largest = max(scale.sizes)
    device = StreamDevice(platform.runtime, (WorkerSpec(largest),), DeviceOptions(graphs=graphs))
    try:
        executor = device.open(model, 2 * largest)
        for size in scale.sizes:
            try_batch(device, executor, size, dict.fromkeys(executor.pool.lengths, scale.steps))
        driven = Driven(device, executor, scale)
        for _ in range(3):
            driven.unit(driven.slots)
            driven.end()
        yield driven
        device.free(executor)
    finally:
        if not device.close(30.0):
            raise Failed("a thread of the device hangs")
        platform.settle()


def network(scale: Scale) -> Model:
    """As many linear layers as stages; cut into them."""
    spec = TensorSpec("x", "FP32", (scale.width,), ("",), (scale.width,))
    torch.manual_seed(0)
    staged = Staged([nn.Linear(scale.width, scale.width) for _ in range(scale.stages)]).eval()
    return Model(_info((spec,), scale), staged, row_check="off", stages=staged.stages, again=staged.again)


class Cell(nn.Module):
    """Layers of an LSTM, one above another; the state has each layer's two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(LAYERS))

    def step(self, x: torch.Tensor, state: Any) -> Any:
        after = []
        for number, layer in enumerate(self.layers):
            x, memory = layer(x, (state[2 * number], state[2 * number + 1]))
            after += [x, memory]
        return x, tuple(after)


def lstm(scale: Scale) -> Model:
    """Rows of `steps` steps; the answer is the last one's."""
    spec = TensorSpec("x", "FP32", (-1, scale.width), ("n", ""), (scale.steps, scale.width))
    torch.manual_seed(0)
    declared = Recurrent(Cell(scale.width).eval(), ((scale.width,),) * (2 * LAYERS))
    call, info = recurrent_model(declared, _info((spec,), scale))
    return Model(info, call, row_check="off")


def _info(inputs: tuple[TensorSpec, ...], scale: Scale) -> ModelInfo:
    output = TensorSpec("y", "FP32", (scale.width,), ("",), (scale.width,))
    return ModelInfo("net", "1", "bench", inputs, (output,), Batching(max_batch=max(scale.sizes)))
