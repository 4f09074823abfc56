"""The CPU as a device: places models, and runs them on worker threads from the slots to which requests were written.

The loop waits, about 0.05 ms, for an idle worker to begin before it answers calls: answering holds the interpreter
lock, and units would begin up to 0.9 ms late (two cores, 90th percentile, batches of 14 calls).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

import torch

from app.contract import Model
from app.engine.cpu.cells import CellExecutor
from app.engine.cpu.decoding import DecodingExecutor
from app.engine.cpu.executor import CpuExecutor
from app.engine.device import DeviceOptions, Report
from app.engine.executor import Executor, Job, Ran, Stop
from app.engine.pool import Pool, Slots
from app.models.decoders.texts import TextDecoder
from app.models.placement import place
from app.models.process_state import ProcessState, named
from app.models.recurrent.cells import CellModel
from app.models.sources.onnx_model import OnnxModel
from app.scheduler.types import Fault, WorkerSpec

log = logging.getLogger("starling.engine")

_KINDS: dict[type, type[CpuExecutor]] = {CellModel: CellExecutor, TextDecoder: DecodingExecutor}
_BEGIN_WAIT_S = 0.0002  # the switch interval: after it the loop would lose the lock anyway


class Worker:
    """One thread. `report` is called on it and must not block.

    `jobs` holds at most the device's push depth, and one unit that is measured.
    """

    def __init__(self, index: int, threads: int, report: Report) -> None:
        self.index = index
        self.jobs: queue.SimpleQueue[tuple[Job, Stop] | None] = queue.SimpleQueue()
        self._threads = threads
        self._report = report
        self._idle = True  # written by the thread
        self._begun = threading.Lock()  # the thread releases it when it begins a unit
        # A daemon: a hung model must not keep a process alive that has been told to end.
        self.thread = threading.Thread(target=self._main, name=f"worker-{index}", daemon=True)
        self.thread.start()

    def wait_until_begun(self) -> None:
        """Return when the thread has begun the unit that it was handed while idle, or after 0.2 ms."""
        self._begun.acquire(blocking=False)  # it may be free since an earlier unit
        if self._idle and not self.jobs.empty():
            self._begun.acquire(timeout=_BEGIN_WAIT_S)

    def close(self, timeout_s: float) -> bool:
        """End the thread after the units in its queue. False if it did not end in time, because the model hangs."""
        self.jobs.put(None)
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _main(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            state = ProcessState()
            while (given := self.jobs.get()) is not None:
                self._idle = False
                if self._begun.locked():
                    self._begun.release()
                job, stop = given
                assert isinstance(job.executor, CpuExecutor)  # the device placed it
                runs, continues = job.executor.run(job, stop), True
                while continues:
                    completion = job.executor.report_next(job, runs)
                    completion.worker = self.index
                    continues = completion.outcome.continues
                    self._idle = not continues
                    if completion.cause is not None:
                        _put_back(state, job)
                    self._report(completion)
                if completion.outcome.error is Fault.DEVICE:
                    return
                # Drop the references now, not when the next unit comes: outputs belong to the callers.
                del given, job, stop, runs, completion


def _put_back(state: ProcessState, job: Job) -> None:
    """After a batch has failed: any model's batch may have changed a setting that made it fail. It runs again then."""
    if changed := state.put_back():
        log.warning(
            "a batch of model %s failed while a model's code had set %s, which all models share: put back",
            job.executor.model.info.name, named(changed),
        )  # fmt: skip


class CpuDevice:
    """Implements engine.device.Device. Compute threads times running workers never exceed the cores."""

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
        self.spec = options.spec(workers, running, 0)
        self._placement = options.placement
        self._workers: Sequence[Worker] = ()

    def start(self, report: Report) -> None:
        # It is process-wide, so before the first operation. With more threads than asked for, small operators are
        # slower.
        torch.set_num_threads(self.threads)
        self._workers = [Worker(index, self.threads, report) for index in range(len(self.spec.workers))]

    def push(self, worker: int, job: Job, stop: Stop) -> None:
        self._workers[worker].jobs.put((job, stop))

    def wait_until_begun(self) -> None:
        for worker in self._workers:
            worker.wait_until_begun()

    def dead(self) -> str | None:
        return next((f"worker {w.index} has died" for w in self._workers if not w.thread.is_alive()), None)

    def close(self, timeout_s: float) -> bool:
        ended = [worker.close(timeout_s) for worker in self._workers]  # each, also after one that hangs
        return all(ended)

    def open(self, model: Model, slots: int) -> Executor:
        if isinstance(model.call, OnnxModel):
            model.call.use_threads(self.threads)
        kind = _KINDS.get(type(model.call), CpuExecutor)
        return kind(place(model, self._placement), Pool(model.info.client_inputs, slots))

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        """Runs on the caller's thread, because the workers may be serving other models."""
        assert isinstance(executor, CpuExecutor)
        return executor.trial(slots, size)

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """Does nothing: the model reads the slot itself."""

    def free(self, executor: Executor) -> None:
        """Does nothing: the memory goes with the executor."""
