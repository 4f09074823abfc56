"""What copies cost on a device of streams, apart from computing: inputs to the device, outputs back.

Units do not show it: their inputs are copied before they begin, and their outputs while the next one computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from app.contract import Array
from app.engine.device import Transfer
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.runtime import Runtime, perform

_VISITS = 5  # that count, after one that does not
_IN_A_ROW = 8  # copies of a visit, one enqueued behind another, so that all share the wait for the last


class TransferBench:
    """Copies on a stream of the device, with nothing else on the device. Blocks."""

    def __init__(self, runtime: Runtime, stream: Any, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._runtime = runtime
        self._stream = stream
        self._clock = clock

    def measure(self, pool: StreamPool, rows: int, outputs: Sequence[Array]) -> Transfer:
        """A batch of the pool's first `rows` slots, whose outputs are as these. The rows are on the device already."""
        pairs = zip(pool.rows, pool.slabs, strict=True)
        inputs = [(device[:rows], host[:rows]) for device, host in pairs if device is not None and host is not None]
        sizes = [(max(1, output.nbytes),) for output in outputs]
        made = [(self._runtime.pinned(size, torch.uint8), self._runtime.empty(size, torch.uint8)) for size in sizes]
        return Transfer(self._time(inputs), self._time(made))

    def _time(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> int:
        """One round of copies, target from source; the median of some visits."""

        def copy() -> None:
            for _ in range(_IN_A_ROW):
                for target, source in pairs:
                    target.copy_(source, non_blocking=True)

        times = []
        for _ in range(_VISITS + 1):
            begin = self._clock()
            perform(self._runtime, self._stream, copy)
            times.append((self._clock() - begin) / _IN_A_ROW)
        return round(median(times[1:]))
