"""What models may take of memory: slots for the rows that wait and run, and activations of rows between stages."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from app.contract import CLASSES, Model, ModelInfo
from app.engine.activations import Activations
from app.engine.device import NO_BOUND
from app.engine.lease import PlacedModel
from app.engine.pool import slot_bytes
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """In bytes. `pool`: slots of one model. `activations`: of one model. `bodies`: of requests, which are not the
    engine's, but share a container of `container` bytes with all of this; None: no limit is known.
    """

    pool: int = 512 << 20
    activations: int = 512 << 20
    bodies: int = 0
    container: int | None = None

    def fit(self, model: Model, spec: DeviceSpec, spare_batches: int) -> tuple[Model, int, int]:
        """The model with the limits that this device can hold, the rows of `spare_batches`, and the slots in all.

        A batch is no larger than the largest worker. Queues are cut so that all slots take at most `pool`. Each class
        has a queue and slots of its own: otherwise rows of one that wait could take all.
        """
        batching = model.info.batching
        largest = min(batching.max_batch, max(worker.capacity for worker in spec.workers))
        spare = largest * spare_batches
        running = largest * len(spec.workers) * spec.push_depth + spare
        queue, row = batching.max_queue, slot_bytes(model.info.client_inputs)
        if row * (len(CLASSES) * queue + running) > self.pool:
            queue = min(queue, max(largest, (self.pool // row - running) // len(CLASSES)))
        if queue < batching.max_queue:
            log.warning(
                "model %s: the queue of each class is cut from %d to %d rows, so that its slots of %.1f KiB fit in "
                "%d MiB", model.info.name, batching.max_queue, queue, row / 1024, self.pool // _MIB,
            )  # fmt: skip
        info = replace(model.info, batching=replace(batching, max_batch=largest, max_queue=queue))
        return replace(model, info=info), spare, len(CLASSES) * queue + running

    def most_alive(self, info: ModelInfo, activations: Activations | None) -> int:
        """Rows that may have started and not ended, so that their activations between stages fit.

        A row counts twice, for what a stage reads and what it leaves, at the most that one has taken so far.
        """
        if activations is None or not activations.row_bytes:
            return NO_BOUND
        row, largest = 2 * activations.row_bytes, info.batching.max_batch
        rows = max(1, self.activations // row)
        if rows < largest:
            log.warning(
                "model %s: a batch of %d rows takes %.1f MiB between stages, more than activation_mib: cut to %d rows",
                info.name, largest, largest * row / _MIB, rows,
            )  # fmt: skip
        return rows

    def warn_if_exceeded(self, models: Collection[PlacedModel]) -> None:
        """Log if the container's memory may not suffice.

        A quarter of it is left to the interpreter, torch, weights and what batches allocate.
        """
        slots = sum(model.pool.nbytes for model in models)
        between = sum(self.activations for model in models if model.activations is not None)
        if self.container is None or slots + between + self.bodies <= self.container * 3 // 4:
            return
        log.warning(
            "memory: the slots of %d models may take %d MiB (--pool-mib for each), rows between stages %d MiB "
            "(--activation-mib for each), bodies %d MiB (--max-inflight-mib): more than 3/4 of the container's %d MiB. "
            "Lower these, or raise its limit",
            len(models), slots // _MIB, between // _MIB, self.bodies // _MIB, self.container // _MIB,
        )  # fmt: skip
