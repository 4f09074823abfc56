"""The CPU as a device: worker threads over slots that the model reads where they were written.

A worker runs one unit after another and reports each once. Everything it is told comes through one queue, everything it
says through one callback. It knows nothing of calls, and nothing is shared with the loop but the queue and a word that
a unit has been turned to.

That word is for a loop which has handed over a unit and is about to answer the calls of the last. Waking up, the thread
would find the interpreter lock taken. It may ask for it after the switch interval, but the wait begins anew whenever
the loop lets go of the lock for an instant, which each write to a socket does. On two cores a unit so began up to 0.9
ms after it was handed over (the 90th percentile, with batches of 14 calls); `python -m experiments.costs.handover`
shows how much it is here. So the loop waits for the word first: some 0.05 ms, for which the device idles either way.
"""

from __future__ import annotations

import queue
import threading

import torch

from app.contract import Model
from app.engine.cpu.cells import CellExecutor
from app.engine.cpu.decoding import DecodingExecutor
from app.engine.cpu.executor import CpuExecutor, run_unit
from app.engine.cpu.niceness import Niceness, may_be_nice
from app.engine.cpu.staged import StagedExecutor
from app.engine.device import NO_BOUND, DeviceOptions, Job, Ran, Report, push_depth
from app.engine.executor import Executor
from app.engine.pool import Pool, Slots
from app.models.decoders.texts import TextDecoder
from app.models.placement import place
from app.models.recurrent.cells import CellModel
from app.models.sources.onnx_model import OnnxModel
from app.models.sources.trees import Trees
from app.scheduler.types import DeviceSpec, Fault, WorkerSpec

_WORD_S = 0.0002  # the longest wait for it: the switch interval, after which the loop would lose the lock in any case


class Worker:
    """One thread. `report` is called on it and must not block.

    The queue holds at most the device's push depth, and one unit that is measured.
    """

    def __init__(self, index: int, threads: int, report: Report, *, nice: bool = False) -> None:
        """`nice`: its thread gives way to others while it runs best-effort units."""
        self.index = index
        self._nice = nice
        self._threads = threads
        self._report = report
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = True  # written by the thread
        self._awaited = False  # it was idle when it was handed its last unit, and nobody has waited for the word
        self._word = threading.Lock()  # free from when the thread turns to a unit until the loop has waited for it
        self._word.acquire()
        # A daemon: a hung model must not keep a process alive that has been told to end.
        self._thread = threading.Thread(target=self._main, name=f"worker-{index}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def push(self, job: Job) -> None:
        """Hand over a unit. Returns at once."""
        self._word.acquire(blocking=False)  # nobody has waited for the last one
        self._awaited = self._idle
        self._jobs.put(job)

    def let_begin(self) -> None:
        """Return when the thread has turned to the unit that it was handed while it was idle, or after a moment."""
        if self._awaited:
            self._awaited = False
            self._word.acquire(timeout=_WORD_S)

    def close(self, timeout_s: float) -> bool:
        """Let the thread end after what it has; False if it did not within the time, because the model hangs."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        torch.set_num_threads(self._threads)
        niceness = Niceness() if self._nice else None
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                self._idle = False
                if self._word.locked():
                    self._word.release()
                if niceness is not None:
                    niceness.set(job.best_effort)
                completion = run_unit(job)
                completion.worker = self.index
                while completion.outcome.continues:
                    self._report(completion)
                    completion = run_unit(job)
                    completion.worker = self.index
                self._idle = True
                self._report(completion)
                if completion.outcome.error is Fault.DEVICE:
                    return
                # Not to be kept until the next unit comes: outputs belong to the callers now.
                del job, completion


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
        ahead = options.push_ahead_ns or 0
        depth = push_depth(ahead)
        self.spec = DeviceSpec(
            workers,
            running,
            options.max_alive or NO_BOUND,
            depth,
            ahead,
            multi_step=True,
        )
        self._placement = options.placement
        self._workers: list[Worker] = []

    def start(self, report: Report) -> None:
        # Process-wide, so before the first operation; two threads for one worker's small operators lose to one.
        torch.set_num_threads(self.threads)
        # Alone, a worker is what a real-time unit waits for: a best-effort one on it must not give way to anybody.
        nice = self.spec.max_running > 1 and may_be_nice()
        workers = range(len(self.spec.workers))
        self._workers = [Worker(index, self.threads, report, nice=nice) for index in workers]

    def open(self, model: Model, slots: int) -> Executor:
        pool = Pool(model.info.client_inputs, slots)
        if isinstance(model.call, (OnnxModel, Trees)):
            model.call.use_threads(self.threads)
        if isinstance(model.call, CellModel):
            return CellExecutor(place(model, self._placement), pool, slots)
        if isinstance(model.call, TextDecoder):
            return DecodingExecutor(place(model, self._placement), pool)
        return (StagedExecutor if model.stages else CpuExecutor)(place(model, self._placement), pool)

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        """On the caller's thread: the workers may be serving other models."""
        assert isinstance(executor, CpuExecutor)
        with torch.inference_mode():
            return executor.trial(slots, size)

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """Does nothing: the model reads the slot itself."""

    def push(self, worker: int, job: Job) -> None:
        self._workers[worker].push(job)

    def let_begin(self) -> None:
        for worker in self._workers:
            worker.let_begin()

    def free(self, executor: Executor) -> None:
        """Does nothing: the memory goes with the executor."""

    def dead(self) -> str | None:
        return next((f"worker {w.index} has died" for w in self._workers if not w.alive), None)

    def close(self, timeout_s: float) -> bool:
        ended = [worker.close(timeout_s) for worker in self._workers]  # each, also after one that hangs
        return all(ended)
