"""The interface of a device, and what it shares with the engine beside jobs: options and reports.

A model is placed once (`Device.open` returns an `Executor`). After that the engine pushes jobs, and each is reported
exactly once. A device knows slots and tensors, and nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from app.contract import Model
from app.engine.executor import NO_BOUND, Executor, Job, Ran, Stop
from app.engine.pool import Slots
from app.models.base import is_out_of_memory, one_line
from app.models.placement import AS_LOADED, Placement
from app.scheduler.types import DeviceSpec, Fault, Outcome, WorkerSpec

_CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation: allocations that do not go through torch's allocator
_PUSH_DEPTH = 2  # units of a worker at once; more would only delay later rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The settings that every device has.

    `push_ahead_ns`: how long before the predicted end of a unit the next one may be handed over; None: the device's
    default. `max_alive`: rows on the device at once; None: no bound. `graphs`: capture CUDA graphs. `keeps_one`: on a
    GPU, the worker that is kept for real-time work has streams of high priority.
    """

    placement: Placement = AS_LOADED
    push_ahead_ns: int | None = None
    max_alive: int | None = None
    graphs: bool = True
    keeps_one: bool = False

    def spec(self, workers: tuple[WorkerSpec, ...], running: int, usual_ahead_ns: int) -> DeviceSpec:
        """Of a device with these workers, of which so many may run at once. `usual_ahead_ns`: if none is asked for."""
        ahead = usual_ahead_ns if self.push_ahead_ns is None else self.push_ahead_ns
        depth = _PUSH_DEPTH if ahead else 1
        return DeviceSpec(workers, running, self.max_alive or NO_BOUND, depth, ahead, multi_step=True)


@dataclass(slots=True)
class Completion:
    """A worker's report on a job: the outcome for the scheduler, and outputs or an error for the callers."""

    outcome: Outcome
    ran: Ran | None = None
    message: str = ""
    worker: int = -1
    cause: BaseException | None = None


#: Called on a device's threads, see `Device.start`.
Report = Callable[[Completion], None]


class Device(Protocol):
    """Memory and workers. Each job that is pushed is reported exactly once, unless the device is lost."""

    name: str
    spec: DeviceSpec
    #: Compute threads of each worker; 1 if the device is not a CPU.
    threads: int
    #: Rows are copied to the device: when `arrive` is called, or when their unit is launched.
    staged: bool

    def start(self, report: Report) -> None:
        """Start the workers. They call `report` on their threads with each job that has ended."""

    def open(self, model: Model, slots: int) -> Executor:
        """Place the model: move its weights, and allocate memory for the inputs of `slots` rows. Blocks.

        Raises ConfigError naming the model.
        """

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        """Run the rows in `slots` as a batch of `size` outside of serving: warm-up and checks. Blocks.

        A device may run it on every worker that takes it, and return the fastest result. Raises what the model raises.
        Call it under torch.inference_mode. Not for the event loop, nor for a device's own threads.
        """

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written. Returns at once."""

    def push(self, worker: int, job: Job, stop: Stop) -> None:
        """Hand a job to a worker. Returns at once. `stop` may end it early."""

    def wait_until_begun(self) -> None:
        """Wait until idle workers have begun the units that they were handed, or for a moment.

        For a caller that will hold the interpreter lock next.
        """

    def free(self, executor: Executor) -> None:
        """Free what the device holds for a model that has been unloaded."""

    def dead(self) -> str | None:
        """Why the device does not work any more, or None."""

    def close(self, timeout_s: float) -> bool:
        """End the workers; False if one hangs."""


def fault_of(exc: BaseException) -> Fault:
    """Classify an exception that a unit raised.

    An AcceleratorError may mean that the device is lost, or that only this unit failed; its type does not tell. Here it
    counts as the model's fault, so code for an accelerator must test the device afterwards.
    """
    of_cuda = isinstance(exc, torch.AcceleratorError) and getattr(exc, "error_code", None) == _CUDA_OUT_OF_MEMORY
    if of_cuda or is_out_of_memory(exc):
        return Fault.OOM
    # GeneratorExit: the run of its units has been closed, the thread does no more
    return Fault.DEVICE if isinstance(exc, GeneratorExit) else Fault.MODEL


def failed(unit_id: int, fault: Fault, exc: BaseException) -> Completion:
    """The report of a unit whose first step raised `exc`."""
    return Completion(Outcome(unit_id, fault), None, one_line(exc), cause=exc)
