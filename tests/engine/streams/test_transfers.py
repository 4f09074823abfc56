"""What copies cost: the time of a round of copies, whatever it costs to begin and to wait; nothing else is timed."""

from __future__ import annotations

from itertools import count

import numpy as np
from runtimes import FakeRuntime

from app.engine.streams.device_pool import Copies, StreamPool
from app.engine.streams.loading import transfer_cost

from ..rig import tensor

INPUTS = (tensor("x", "FP32", 3), tensor("n", "INT64"))


class Counting(FakeRuntime):
    """Its clock is the number of pieces of work that streams have done."""

    def clock(self) -> int:
        return 800 * self.done


def pool_on(runtime: FakeRuntime) -> StreamPool:
    pool = StreamPool(INPUTS, 8, Copies(), (runtime.pinned, runtime.empty), lambda pool, slots: None)
    pool.write(range(4), 0, np.arange(12, dtype=np.float32).reshape(4, 3))
    pool.write(range(4), 1, np.arange(4))
    return pool


def test_a_visit_is_shared_by_its_copies() -> None:
    """A visit is two pieces of work, the copies and the event behind them, and eight rounds of copies."""
    runtime = Counting()
    outputs = [np.zeros((4, 2), np.float32)]
    transfer = transfer_cost(runtime, runtime.stream(), pool_on(runtime), 4, outputs, runtime.clock)
    assert transfer == (200, 200)


def test_the_first_visit_of_each_way_does_not_count() -> None:
    runtime = FakeRuntime()
    reads = count()  # the clock is read as a visit begins and as it ends: from 0, the nth takes 8 (4 n + 1) ns
    outputs = [np.zeros((4, 2), np.float32)]
    transfer = transfer_cost(runtime, runtime.stream(), pool_on(runtime), 4, outputs, lambda: 8 * next(reads) ** 2)
    assert transfer == (4 * 3 + 1, 4 * 9 + 1)  # six visits with the inputs, then six with the outputs
