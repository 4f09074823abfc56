"""What a real-time batch waits for on the device: how soon a batch stops between stages, and what one beside it costs.

Batches go through the engine without HTTP and without a scheduler, on two workers: one for bulk work, and one of high
priority, as it is kept for real-time work.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from app.contract import Batching, Model, ModelInfo, TensorSpec
from app.engine.devices.base import Completion, DeviceOptions, Executor, Job
from app.engine.devices.factory import worker_specs
from app.engine.devices.streams.device import StreamDevice
from app.engine.profiling.warmup import try_batch
from app.models import Staged

from .driven_device import Failed
from .platforms import Platform

BULK, KEPT = 0, 1  # workers


@dataclass(frozen=True, slots=True)
class Scale:
    """`layers` of `width`, cut into each of `stages` parts; `rows` of a bulk batch. A real-time batch has one row.

    `repeats` of everything, each stopped or timed once.
    """

    stages: tuple[int, ...] = (1, 2, 4, 8)
    layers: int = 8
    width: int = 4096
    rows: int = 512
    repeats: int = 60


def preemption(platform: Platform, scale: Scale) -> dict[str, Any]:
    cells = [_stops(platform, scale, stages) for stages in scale.stages]
    return {**asdict(scale), "cells": cells, "beside": [_beside(platform, scale)]}


class Pair:
    """A bulk batch of one model and a real-time batch of another, on a worker each. Times are microseconds."""

    def __init__(self, device: StreamDevice, bulk: Executor, real: Executor, rows: int) -> None:
        self.device, self.bulk, self.real = device, bulk, real
        self.stages = max(1, len(bulk.model.stages))
        self._units = 0
        self._reports: queue.SimpleQueue[tuple[int, Completion]] = queue.SimpleQueue()
        device.start(lambda completion: self._reports.put((time.perf_counter_ns(), completion)))
        self._slots = list(bulk.pool.take(rows))
        self._one = list(real.pool.take(1))
        torch.manual_seed(0)
        for executor, slots in ((bulk, self._slots), (real, self._one)):
            values = torch.randn((len(slots), *executor.model.info.client_inputs[0].bounds)).numpy()
            executor.pool.write(slots, 0, values)
            device.arrive(executor, slots)

    def push_bulk(self, stage: int) -> None:
        """A stage of the batch."""
        self.device.push(BULK, Job(self._number(), self.bulk, self._slots, len(self._slots), stage))

    def push_real(self) -> int:
        begin = time.perf_counter_ns()
        self.device.push(KEPT, Job(self._number(), self.real, self._one, 1, 0))
        return begin

    def _number(self) -> int:
        self._units += 1
        return self._units

    def heard(self, until: int | None = None) -> tuple[int, Completion] | None:
        """The next report and when it came; None if there is none before `until`, by the host's clock."""
        try:
            left = None if until is None else max(0.0, (until - time.perf_counter_ns()) / 1e9)
            moment, completion = self._reports.get(timeout=left)
        except queue.Empty:
            return None
        if completion.ran is None:
            raise Failed(completion.message)
        return moment, completion

    def alone(self) -> float:
        """A real-time batch with nothing beside it."""
        begin = self.push_real()
        found = self.heard()
        assert found is not None
        return (found[0] - begin) / 1e3

    def whole(self) -> float:
        """A bulk batch through all its stages."""
        taken, _ = self.until(None)
        self.let_go()
        return taken

    def until(self, moment: int | None) -> tuple[float, bool]:
        """A bulk batch, until this moment or its end: what it has taken, and whether a stage still runs."""
        begin = time.perf_counter_ns()
        stage = 0
        while True:
            self.push_bulk(stage)
            found = self.heard(moment)
            if found is None:
                return 0.0, True
            stage += found[1].outcome.steps
            if stage >= self.stages:
                return (found[0] - begin) / 1e3, False

    def stop(self, after_ns: int) -> tuple[float, float] | None:
        """A bulk batch is stopped for a real-time one: how long each takes from then on. None if it was over before."""
        _, runs = self.until(time.perf_counter_ns() + after_ns)
        if not runs:
            self.let_go()
            return None
        begin = self.push_real()
        ends: dict[int, int] = {}
        while len(ends) < 2:
            found = self.heard()
            assert found is not None
            ends[found[1].worker] = found[0]
        self.let_go()
        return max(0, ends[BULK] - begin) / 1e3, (ends[KEPT] - begin) / 1e3

    def beside(self, count: int) -> tuple[list[float], float]:
        """Real-time batches while bulk ones follow one another; and how many rows of these ran a second."""
        taken: list[float] = []
        ended, first = 0, time.perf_counter_ns()
        self.push_bulk(0)
        begin = self.push_real()
        while True:
            found = self.heard()
            assert found is not None
            moment, completion = found
            if completion.worker == BULK:
                ended += 1
                if len(taken) == count:
                    return taken, ended * len(self._slots) * 1e9 / (moment - first)
                self.push_bulk(0)
            else:
                taken.append((moment - begin) / 1e3)
                if len(taken) < count:
                    begin = self.push_real()

    def let_go(self) -> None:
        for executor, slots in ((self.bulk, self._slots), (self.real, self._one)):
            if executor.activations is not None:
                executor.activations.let_go(slots)


def _stops(platform: Platform, scale: Scale, stages: int) -> dict[str, Any]:
    with opened(platform, scale, stages) as pair:
        whole = [pair.whole() for _ in range(scale.repeats)]
        alone = [pair.alone() for _ in range(scale.repeats)]
        longest, chance = sorted(whole)[len(whole) // 2], random.Random(stages)
        found = [pair.stop(int(chance.uniform(0.05, 0.95) * longest * 1e3)) for _ in range(scale.repeats)]
    stopped = [one for one in found if one is not None]
    return {
        "stages": stages, "whole_us": whole, "alone_us": alone,
        "stop_us": [stop for stop, _ in stopped], "real_us": [real for _, real in stopped],
    }  # fmt: skip


def _beside(platform: Platform, scale: Scale) -> dict[str, Any]:
    with opened(platform, scale, 1) as pair:
        alone = [pair.alone() for _ in range(scale.repeats)]
        beside, rate = pair.beside(scale.repeats)
    return {"alone_us": alone, "beside_us": beside, "bulk_rows_s": rate}


@contextmanager
def opened(platform: Platform, scale: Scale, stages: int) -> Iterator[Pair]:
    options = DeviceOptions(keeps_one=True, push_depth=1)
    device = StreamDevice(platform.runtime, worker_specs((scale.rows, scale.rows), options), options)
    try:
        bulk = device.open(network("bulk", scale, stages, scale.rows), 2 * scale.rows)
        real = device.open(network("real", scale, 1, 1), 2)
        try_batch(device, bulk, scale.rows, {})
        try_batch(device, real, 1, {})
        yield Pair(device, bulk, real, scale.rows)
        for executor in (bulk, real):
            device.free(executor)
    finally:
        if not device.close(30.0):
            raise Failed("a thread of the device hangs")
        platform.settle()


def network(name: str, scale: Scale, stages: int, rows: int) -> Model:
    """Linear layers, cut into stages of as many each; whole where that is 1."""
    torch.manual_seed(0)
    layers = [nn.Linear(scale.width, scale.width) for _ in range(scale.layers)]
    spec = TensorSpec("x", "FP32", (scale.width,), ("",), (scale.width,))
    output = TensorSpec("y", "FP32", (scale.width,), ("",), (scale.width,))
    info = ModelInfo(name, "1", "bench", (spec,), (output,), Batching(max_batch=rows))
    if stages == 1:
        return Model(info, nn.Sequential(*layers).eval(), row_check="off")
    each = scale.layers // stages
    parts: Sequence[nn.Module] = [nn.Sequential(*layers[at : at + each]) for at in range(0, scale.layers, each)]
    staged = Staged(parts).eval()
    return Model(info, staged, row_check="off", stages=staged.stages, again=staged.again)
