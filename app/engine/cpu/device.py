"""The CPU as a device: worker threads over slots that the model reads where they were written."""

from __future__ import annotations

import torch

from app.contract import Array, Model
from app.engine.cpu.cells import CellExecutor
from app.engine.cpu.decoding import DecodingExecutor
from app.engine.cpu.executor import CpuExecutor
from app.engine.cpu.niceness import may_be_nice
from app.engine.cpu.staged import StagedExecutor
from app.engine.cpu.worker import Worker
from app.engine.device import NO_BOUND, DeviceOptions, Executor, Freed, Job, Ran, Report, Transfer, push_depth
from app.engine.pool import Pool, Slots
from app.models.decoders.texts import TextDecoder
from app.models.placement import place
from app.models.recurrent.cells import CellModel
from app.models.sources.onnx_model import OnnxModel
from app.models.sources.trees import Trees
from app.scheduler.types import DeviceSpec, WorkerSpec


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
            withdraws=depth > 1,
        )
        self._placement = options.placement
        self._workers: list[Worker] = []

    def start(self, report: Report, freed: Freed | None = None) -> None:
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

    def transfer(self, executor: Executor, rows: int, outputs: list[Array]) -> Transfer | None:
        """None: nothing is copied."""
        return None

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """Does nothing: the model reads the slot itself."""

    def push(self, worker: int, job: Job) -> None:
        self._workers[worker].push(job)

    def withdraw(self, worker: int, job: Job) -> bool:
        return job.claim()

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
