"""What copies cost: the time of a round of copies, whatever it costs to begin and to wait; nothing else is timed."""

from __future__ import annotations

import numpy as np
import torch
from runtimes import FakeRuntime

from app.engine.streams.device_pool import Copies, StreamPool
from app.engine.streams.loading import TransferBench

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
    transfer = TransferBench(runtime, runtime.stream(), runtime.clock).measure(
        pool_on(runtime), 4, [np.zeros((4, 2), np.float32)]
    )
    assert transfer == (200, 200)


def test_the_rows_are_copied_and_no_others() -> None:
    runtime = FakeRuntime()
    pool = pool_on(runtime)
    for rows in pool.rows:
        rows.fill_(-1)
    TransferBench(runtime, runtime.stream()).measure(
        pool, 2, [np.zeros((2, 2), np.float32), np.zeros((2, 0), np.int64)]
    )
    assert torch.equal(pool.rows[0][:, 0], torch.tensor([0.0, 3, -1, -1, -1, -1, -1, -1]))
    assert pool.rows[1].tolist() == [0, 1, -1, -1, -1, -1, -1, -1]
