"""Divides memory among models: slots for waiting and running rows, and what is kept of rows between units.

In a container all of this must fit:

    resident    memory of the process before
    weights     of all models on a CPU
    bodies      of requests: `max_inflight_mib`, at most a quarter of what is not resident
    batches     running batches and answers: a quarter of what is neither resident nor weights
    models      slots and activations: the rest, at most an equal part for each model loaded at the start

Queues are shortened to fit. A model whose shortest queue does not fit is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from app.contract import CLASSES, Model, ModelInfo
from app.engine.executor import NO_BOUND, Kept
from app.engine.pool import slot_bytes
from app.errors import ConfigError
from app.models.decoders.texts import TextDecoder
from app.models.recurrent.cells import CellModel
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one version of a model may take. `model` has limits that fit. `spare`: the slots kept for measurements.

    `spare` and `slots` are numbers of rows; the rest are bytes, `nbytes` of slots and activations.
    """

    model: Model
    spare: int
    slots: int
    nbytes: int
    activation_bytes: int
    weight_bytes: int


class Memory:
    """Limits in bytes. `pool`: slots of one model. `activations`: of one model. `bodies`: of requests.

    `container`: its limit; None: unknown. `resident`: memory of the process now. `models`: how many are loaded at the
    start. `on_gpu`: weights are not in the container's memory.
    """

    def __init__(
        self,
        pool: int = 512 << 20,
        activations: int = 512 << 20,
        bodies: int = 0,
        *,
        container: int | None = None,
        resident: int = 0,
        models: int = 1,
        on_gpu: bool = False,
    ) -> None:
        self._pool, self._activations = pool, activations
        self._container, self._resident, self._on_gpu = container, resident, on_gpu
        self._free = 0 if container is None else max(0, container - resident)
        self.bodies = bodies if container is None else min(bodies, self._free // 4)
        self._part = (self._free * 3 // 4 - self.bodies) // max(1, models)
        self._reserved: list[Reservation] = []

    def reserve(self, model: Model, spec: DeviceSpec, spare_batches: int) -> Reservation:
        """Reserve memory for a model. Raises ConfigError, listing all that counts, if it does not fit.

        A batch is no larger than the largest worker. Queues are shortened so that all slots fit. Each class has a queue
        and slots of its own, so that waiting rows of one class cannot take all slots.
        """
        weights, name = self._weights(model), (model.info.name, model.info.version)
        # a version that is loaded again replaces itself
        others = [one for one in self._reserved if (one.model.info.name, one.model.info.version) != name]
        pool, activations = self._offered(model, weights, others)
        batching = model.info.batching
        largest = min(batching.max_batch, max(worker.capacity for worker in spec.workers))
        spare = largest * spare_batches
        running = largest * len(spec.workers) * spec.push_depth + spare
        queue, row = batching.max_queue, slot_bytes(model.info.client_inputs)
        if row * (len(CLASSES) * queue + running) > pool:
            queue = min(queue, max(largest, (pool // row - running) // len(CLASSES)))
        if queue < batching.max_queue:
            log.warning(
                "model %s: the queue of each class is cut from %d to %d rows, since its slots of %.1f KiB fill "
                "%d MiB", model.info.name, batching.max_queue, queue, row / 1024, pool // _MIB,
            )  # fmt: skip
        info = replace(model.info, batching=batching.model_copy(update={"max_batch": largest, "max_queue": queue}))
        slots = len(CLASSES) * queue + running
        reserved = Reservation(replace(model, info=info), spare, slots, slots * row + activations, activations, weights)
        if self._container is not None and reserved.nbytes > self._left(weights, others):
            raise ConfigError(self._does_not_fit(reserved, others))
        self._reserved.append(reserved)
        return reserved

    def release(self, model: Model) -> None:
        """Release what was reserved. `model`: as in the Reservation."""
        self._reserved = [one for one in self._reserved if one.model is not model]

    def most_alive(self, info: ModelInfo, activations: Kept[Any] | None) -> int:
        """The most rows that may be alive at once, so that their activations between stages fit.

        A row counts with the most that any has taken so far.
        """
        if activations is None or not activations.row_bytes:
            return NO_BOUND
        own = (one.activation_bytes for one in self._reserved if one.model.info is info)
        row, largest = activations.row_bytes, info.batching.max_batch
        rows = max(1, next(own, self._activations) // row)
        if rows < largest:
            log.warning(
                "model %s: a batch of %d rows takes %.1f MiB between stages, more than pool_mib: cut to %d rows",
                info.name, largest, largest * row / _MIB, rows,
            )  # fmt: skip
        return rows

    def _offered(self, model: Model, weights: int, others: list[Reservation]) -> tuple[int, int]:
        """Bytes for slots and for activations."""
        if self._container is None:
            return self._pool, self._activations
        most = max(0, min(self._part, self._left(weights, others)))
        in_steps = bool(model.stages) or isinstance(model.call, CellModel | TextDecoder)
        activations = min(self._activations, most // 2) if in_steps else 0
        return min(self._pool, most - activations), activations

    def _left(self, weights: int, others: list[Reservation]) -> int:
        weights += sum(one.weight_bytes for one in others)
        return (self._free - weights) * 3 // 4 - self.bodies - sum(one.nbytes for one in others)

    def _weights(self, model: Model) -> int:
        if self._on_gpu or not isinstance(model.call, nn.Module):
            return 0
        return sum(map(_nbytes, chain(model.call.parameters(), model.call.buffers())))

    def _does_not_fit(self, wanted: Reservation, others: list[Reservation]) -> str:
        batching = wanted.model.info.batching
        left = max(0, self._left(wanted.weight_bytes, others))
        weights = wanted.weight_bytes + sum(one.weight_bytes for one in others)
        return (
            f"slots for a queue of {batching.max_queue} rows and batches of "
            f"{batching.max_batch} take {_mib(wanted.nbytes)}, and {_mib(left)} are left: of the container's "
            f"{_mib(self._container or 0)} the process takes {_mib(self._resident)}, weights {_mib(weights)}, bodies "
            f"{_mib(self.bodies)}, other models {_mib(sum(one.nbytes for one in others))}, and a quarter is kept for "
            "batches. Lower --max-batch or --max-inflight-mib, load fewer models, or raise the limit"
        )


def _nbytes(weight: torch.Tensor) -> int:
    """Also of a sparse one, of which torch tells no size, or that of a dense one. Its places are two INT64 a value."""
    sparse = weight.is_sparse or weight.is_sparse_csr
    return weight._nnz() * (weight.element_size() + 16) if sparse else weight.nbytes


def _mib(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"
