"""A worker on a CPU: a thread that runs one unit after another and reports each once.

Everything it is told comes through one queue, everything it says through one callback. It knows nothing of calls, and
nothing but the queue is shared with the loop.
"""

from __future__ import annotations

import queue
import threading

import torch

from app.engine.devices.base import Completion, Job, Report, failed, fault_of
from app.engine.devices.cpu.executor import CpuExecutor
from app.scheduler.types import Fault, Outcome


class Worker:
    """One thread. `report` is called on it and must not block; the queue holds at most the device's push depth."""

    def __init__(self, index: int, threads: int, report: Report) -> None:
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
    executor = job.executor
    assert isinstance(executor, CpuExecutor)  # this device placed it
    try:
        ran = executor.run(job.slots, job.size, job.stage)
    except BaseException as exc:
        return failed(job.unit_id, fault_of(exc), exc)
    return Completion(Outcome(job.unit_id, None, ran.busy_ns), ran)
