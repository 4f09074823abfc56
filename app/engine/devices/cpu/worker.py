"""A worker on a CPU: a thread that runs one unit after another and reports each once.

Everything it is told comes through one queue, everything it says through one callback. It knows nothing of calls, and
nothing but the queue is shared with the loop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from app.engine.devices.cpu.executor import Executor, Ran
from app.engine.devices.pool import Slots
from app.scheduler.types import Fault, Outcome

_LONGEST_MESSAGE = 500
_CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation: allocations that do not go through torch's allocator


@dataclass(slots=True)
class Job:
    """A unit as a worker sees it: which slots of which program, as a batch of what size."""

    unit_id: int
    executor: Executor
    slots: Slots
    size: int


@dataclass(slots=True)
class Completion:
    """A worker's report: the outcome for the scheduler, the outputs or the error's text for the callers."""

    outcome: Outcome
    ran: Ran | None = None
    message: str = ""
    worker: int = -1
    cause: BaseException | None = None  # where who asked wants to raise it again: a warm-up does


class Worker:
    """One thread. `report` is called on it and must not block; the queue holds at most the device's push depth."""

    def __init__(self, index: int, threads: int, report: Callable[[Completion], None]) -> None:
        self.index = index
        self._threads = threads
        self._report = report
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # A daemon: a hung model must not keep a process alive that has been told to end.
        self._thread = threading.Thread(target=self._main, name=f"worker-{index}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def push(self, job: Job) -> None:
        """Hand over a unit. Returns at once."""
        self._jobs.put(job)

    def close(self, timeout_s: float) -> bool:
        """Let the thread end after what it has; False if it did not within the time, because the model hangs."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                completion = run(job)
                completion.worker = self.index
                self._report(completion)
                if completion.outcome.error is Fault.DEVICE:
                    return
                # Not to be kept until the next unit comes: outputs belong to the callers now.
                del job, completion


def run(job: Job) -> Completion:
    """Run a unit; whatever goes wrong becomes an Outcome."""
    try:
        ran = job.executor.run(job.slots, job.size)
    except BaseException as exc:
        return failed(job.unit_id, fault_of(exc), exc)
    return Completion(Outcome(job.unit_id, None, ran.compute_ns), ran)


def fault_of(exc: BaseException) -> Fault:
    """What an exception out of a unit means.

    An AcceleratorError may be the end of the device or a fault of this unit alone; its type does not tell. Here it is
    the model's: whoever runs on an accelerator must try the device afterwards.
    """
    if isinstance(exc, (MemoryError, torch.OutOfMemoryError)):
        return Fault.OOM
    if isinstance(exc, torch.AcceleratorError) and getattr(exc, "error_code", None) == _CUDA_OUT_OF_MEMORY:
        return Fault.OOM
    if not isinstance(exc, Exception):  # SystemExit and the like: the thread is not to be trusted any more
        return Fault.DEVICE
    # torch's CPU allocator raises a plain RuntimeError, which nothing but its text tells from a model's own.
    return Fault.OOM if type(exc) is RuntimeError and "DefaultCPUAllocator" in str(exc) else Fault.MODEL


def failed(unit_id: int, fault: Fault, exc: BaseException) -> Completion:
    message = f"{type(exc).__name__}: {exc}"[:_LONGEST_MESSAGE]
    return Completion(Outcome(unit_id, fault), None, message)
