"""The CPU as a device: places models, and runs them on worker threads from the slots to which requests were written."""

from __future__ import annotations

from app.contract import Model
from app.engine.cpu.cells import CellExecutor
from app.engine.cpu.decoding import DecodingExecutor
from app.engine.cpu.executor import CpuExecutor, WorkerThreads
from app.engine.device import DeviceOptions
from app.engine.executor import Executor, Ran
from app.engine.pool import Pool, Slots
from app.models.decoders.texts import TextDecoder
from app.models.placement import place
from app.models.recurrent.cells import CellModel
from app.models.sources.onnx_model import OnnxModel
from app.scheduler.types import WorkerSpec

_KINDS: dict[type, type[CpuExecutor]] = {CellModel: CellExecutor, TextDecoder: DecodingExecutor}


class CpuDevice(WorkerThreads):
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
