"""A device as the engine sees it, and the CPU as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from app.contract import Model
from app.engine.devices.cpu.executor import Executor
from app.engine.devices.cpu.heap import keep_freed_memory
from app.engine.devices.cpu.worker import Completion, Job, Worker
from app.engine.devices.pool import Pool, Slots
from app.models.placement import AS_LOADED, Placement, place
from app.scheduler.types import DeviceSpec, WorkerSpec

NO_BOUND = 1 << 30  # rows
#: Called on a device's threads, see `Device.start`.
Report = Callable[[Completion], None]
Launched = Callable[[int], None]
Freed = Callable[[Pool, Slots], None]


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What may be set of any device. `push_depth` units are handed to a worker and unfinished; None: what suits it.

    `max_alive` rows are on the device at once, None: no bound. `graphs`: capture CUDA graphs, where there are such.
    """

    placement: Placement = AS_LOADED
    push_depth: int | None = None
    max_alive: int | None = None
    graphs: bool = True


class Device(Protocol):
    """Memory and workers. The engine pushes units and hears of each exactly once, unless the device is lost."""

    name: str
    spec: DeviceSpec
    #: Rows are copied to the device as they arrive: it wants to hear of them by `arrive`.
    staged: bool

    def start(self, report: Report, launched: Launched | None = None, freed: Freed | None = None) -> None:
        """Start the workers, on whose threads all three are called.

        `report` with each unit that has ended; `launched` with the id of each that is on its stream and can only end;
        `freed` with slots that were given back while their rows were still being copied, and may be now.
        """
        ...

    def open(self, model: Model, slots: int) -> Executor:
        """Move the model where it computes; memory for its inputs, and what runs it. Blocks.

        Raises ConfigError naming the model.
        """
        ...

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written. Returns at once."""
        ...

    def push(self, worker: int, job: Job) -> None: ...

    def free(self, executor: Executor) -> None:
        """The model has been unloaded: what the device holds for it may go."""
        ...

    def dead(self) -> str | None:
        """Why the device can do no more work, or None."""
        ...

    def close(self, timeout_s: float) -> bool:
        """End the workers; False if one hangs."""
        ...


class CpuDevice:
    """Worker threads on the CPU. Compute threads times running workers never exceed the cores."""

    staged = False

    def __init__(
        self, capacities: tuple[int, ...], threads: int, cores: int, options: DeviceOptions | None = None
    ) -> None:
        options = options or DeviceOptions()
        self.name = (
            f"cpu, {len(capacities)} worker{'s' * (len(capacities) > 1)} x {threads} thread{'s' * (threads > 1)}"
        )
        self.threads = threads
        running = min(len(capacities), max(1, cores // threads))
        workers = tuple(WorkerSpec(capacity) for capacity in capacities)
        self.spec = DeviceSpec(workers, running, options.max_alive or NO_BOUND, options.push_depth or 1)
        self._placement = options.placement
        self._workers: list[Worker] = []

    def start(self, report: Report, launched: Launched | None = None, freed: Freed | None = None) -> None:
        # Process-wide, so before the first operation; two threads for one worker's small operators lose to one.
        torch.set_num_threads(self.threads)
        keep_freed_memory()
        self._workers = [Worker(index, self.threads, report) for index in range(len(self.spec.workers))]

    def open(self, model: Model, slots: int) -> Executor:
        return Executor(place(model, self._placement), Pool(model.info.inputs, slots))

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """Nothing: the staging row is what the model reads."""

    def push(self, worker: int, job: Job) -> None:
        self._workers[worker].push(job)

    def free(self, executor: Executor) -> None:
        """Nothing: it goes with the executor."""

    def dead(self) -> str | None:
        return next((f"worker {w.index} has died" for w in self._workers if not w.alive), None)

    def close(self, timeout_s: float) -> bool:
        ended = [worker.close(timeout_s) for worker in self._workers]  # each, also after one that hangs
        return all(ended)
