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

from app.engine.executor import Executor, Ran
from app.engine.pool import Slots
from app.scheduler.types import Fault, Outcome

_LONGEST_MESSAGE = 500


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
    """Run a unit; whatever goes wrong becomes an Outcome. The only place where any exception is caught."""
    try:
        ran = job.executor.run(job.slots, job.size)
    except (MemoryError, torch.OutOfMemoryError) as exc:
        return _failed(job, Fault.OOM, exc)
    except Exception as exc:
        # torch's CPU allocator raises a plain RuntimeError, which nothing but its text tells from a model's own.
        oom = type(exc) is RuntimeError and "DefaultCPUAllocator" in str(exc)
        return _failed(job, Fault.OOM if oom else Fault.MODEL, exc)
    except BaseException as exc:  # SystemExit and the like: the thread is not to be trusted any more
        return _failed(job, Fault.DEVICE, exc)
    return Completion(Outcome(job.unit_id, None, ran.compute_ns), ran)


def _failed(job: Job, fault: Fault, exc: BaseException) -> Completion:
    message = f"{type(exc).__name__}: {exc}"[:_LONGEST_MESSAGE]
    return Completion(Outcome(job.unit_id, fault), None, message)
