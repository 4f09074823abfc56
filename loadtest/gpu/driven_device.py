"""Drives one model on a stream device without a scheduler: units at once, or a closed loop on some workers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

import torch

from app.contract import Model
from app.engine.devices.base import Completion, DeviceOptions, Job
from app.engine.devices.streams.device import StreamDevice
from app.engine.devices.streams.executor import StreamExecutor
from app.engine.profiling.warmup import try_batch
from app.models.placement import Placement
from app.scheduler.types import WorkerSpec

from .model_folders import rows_of
from .platforms import Platform

_CLOSE_S = 30.0
_LEAST = 4  # units per worker that a closed loop counts at least


class Failed(RuntimeError):
    """A unit failed; the message is the engine's."""


@dataclass(frozen=True, slots=True)
class Options:
    """`workers`: their capacities. `depth`: units that one worker may hold at a time."""

    workers: tuple[int, ...]
    graphs: bool = True
    precision: str = "fp32"
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Loop:
    """A closed loop on the first `workers`, each with `depth` units of `size` rows in flight."""

    workers: int
    size: int
    depth: int


class DrivenDevice:
    """A context manager. The model is moved to the device, as the server does; give each instance its own copy."""

    def __init__(self, platform: Platform, model: Model, options: Options) -> None:
        self._bed = platform
        self._options = options
        self._model = model
        workers = tuple(WorkerSpec(capacity) for capacity in options.workers)
        placement = Placement(precision=options.precision)
        self.device = StreamDevice(
            platform.runtime,
            workers,
            DeviceOptions(placement=placement, push_depth=options.depth, graphs=options.graphs),
        )
        self.executor: StreamExecutor
        self._seats: list[list[Sequence[int]]] = []  # by worker and depth: slots
        self._ended: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._pushed = 0  # since the loop began; under the lock
        self._going: list[tuple[int, int]] = []  # by unit: worker, which of its units

    def __enter__(self) -> Self:
        options = self._options
        slots = options.depth * sum(options.workers)
        self.device.start(self._report)
        executor = self.device.open(self._model, slots)
        assert isinstance(executor, StreamExecutor)
        self.executor = executor
        return self

    def __exit__(self, *exc: object) -> None:
        self.device.free(self.executor)
        ended = self.device.close(_CLOSE_S)
        # A graph freed later would free stream workspaces that the next device may use.
        del self.executor, self.device
        self._bed.settle()
        if not ended:
            raise Failed("a thread of the device hangs")

    @property
    def captured(self) -> bool:
        """Whether every unit of a warmed size runs as a graph."""
        return self._options.graphs and self.executor.graphs

    def warm(self, sizes: Sequence[int]) -> None:
        """Capture and run these sizes on every worker that can run them, then copy random rows to the device."""
        for size in sizes:
            if size <= max(self._options.workers):
                try_batch(self.device, self.executor, size, {})
        pool = self.executor.pool
        self._seats = [[pool.take(capacity) for _ in range(self._options.depth)] for capacity in self._options.workers]
        for seed, seats in enumerate(self._seats):
            for slots in seats:
                for index, rows in enumerate(rows_of(self._model, len(slots), seed)):
                    pool.write(slots, index, rows.numpy())
                self.device.arrive(self.executor, slots)
        self._bed.settle()

    def burst(self, size: int) -> float:
        """A unit of `size` rows on each worker at once: milliseconds from the first push to the last report."""
        self._loop = None
        begin = time.perf_counter_ns()
        for worker, seats in enumerate(self._seats):
            self.device.push(worker, Job(worker, self.executor, seats[0][:size], size))
        last = 0
        for _ in self._seats:
            last = max(last, self._next())
        return (last - begin) / 1e6

    def closed(self, loop: Loop, seconds: float) -> float:
        """Rows per second. The rows of each unit are copied to the device again, one by one, before it is pushed."""
        self._loop, self._pushed = loop, 0
        self._going = [(worker, place) for worker in range(loop.workers) for place in range(loop.depth)]
        with self._lock:
            for unit in range(len(self._going)):
                self._push(unit, loop.size)
        times: list[int] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < (_LEAST + loop.depth) * loop.workers:
            times.append(self._next())
        with self._lock:
            self._loop = None
            left = self._pushed - len(times)
        times += [self._next() for _ in range(left)]
        # Leave out the first unit of each worker, which began on an idle device, and the last ones, beside which other
        # workers had stopped.
        counted = sorted(times)[len(self._going) - 1 : -len(self._going)]
        return loop.size * (len(counted) - 1) * 1e9 / (counted[-1] - counted[0])

    def _next(self) -> int:
        moment, fault = self._ended.get()
        if fault:
            raise Failed(fault)
        return moment

    def _push(self, unit: int, size: int) -> None:
        self._pushed += 1
        worker, place = self._going[unit]
        slots = self._seats[worker][place][:size]
        for slot in slots:  # one by one, as calls of one row arrive
            self.device.arrive(self.executor, range(slot, slot + 1))
        self.device.push(worker, Job(unit, self.executor, slots, size))

    def _report(self, completion: Completion) -> None:
        """Called on a completer thread. Pushes the worker's next unit before anything else."""
        moment = time.perf_counter_ns()
        fault = completion.message if completion.ran is None else ""
        with self._lock:
            loop = self._loop
            if loop is not None and not fault:
                self._push(completion.outcome.unit_id, loop.size)
        self._ended.put((moment, fault))


def rounds(driven: DrivenDevice, loops: Sequence[Loop], count: int, seconds: float) -> dict[Loop, list[float]]:
    """Rows per second of each loop, `count` times in turn, so that a drifting device favours none of them."""
    found: dict[Loop, list[float]] = {loop: [] for loop in loops}
    with torch.inference_mode():
        for _ in range(count):
            for loop in loops:
                found[loop].append(round(driven.closed(loop, seconds), 2))
    return found


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least, most."""
    return median(values), min(values), max(values)
