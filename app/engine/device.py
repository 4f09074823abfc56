"""A device as the engine sees it, and the CPU as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from app.contract import Model
from app.engine.executor import Executor
from app.engine.pool import Pool
from app.engine.worker import Completion, Job, Worker
from app.scheduler.types import DeviceSpec, WorkerSpec


class Device(Protocol):
    """Memory and workers. The engine pushes units and hears of each exactly once, unless the device is lost."""

    name: str
    spec: DeviceSpec

    def start(self, report: Callable[[Completion], None]) -> None:
        """Start the workers. `report` is called on their threads."""
        ...

    def open(self, model: Model, slots: int) -> Executor:
        """Memory for a model's inputs, and what runs it."""
        ...

    def push(self, worker: int, job: Job) -> None: ...

    def dead(self) -> str | None:
        """Why the device can do no more work, or None."""
        ...

    def close(self, timeout_s: float) -> bool:
        """End the workers; False if one hangs."""
        ...


class CpuDevice:
    """Worker threads on the CPU. Compute threads times running workers never exceed the cores."""

    def __init__(self, capacities: tuple[int, ...], threads: int, cores: int) -> None:
        self.name = (
            f"cpu, {len(capacities)} worker{'s' * (len(capacities) > 1)} x {threads} thread{'s' * (threads > 1)}"
        )
        self.threads = threads
        running = min(len(capacities), max(1, cores // threads))
        self.spec = DeviceSpec(tuple(WorkerSpec(capacity) for capacity in capacities), max_running=running)
        self._workers: list[Worker] = []

    def start(self, report: Callable[[Completion], None]) -> None:
        # Process-wide, so before the first operation; two threads for one worker's small operators lose to one.
        torch.set_num_threads(self.threads)
        self._workers = [Worker(index, self.threads, report) for index in range(len(self.spec.workers))]

    def open(self, model: Model, slots: int) -> Executor:
        return Executor(model, Pool(model.info.inputs, slots))

    def push(self, worker: int, job: Job) -> None:
        self._workers[worker].push(job)

    def dead(self) -> str | None:
        return next((f"worker {w.index} has died" for w in self._workers if not w.alive), None)

    def close(self, timeout_s: float) -> bool:
        ended = [worker.close(timeout_s) for worker in self._workers]  # each, also after one that hangs
        return all(ended)
