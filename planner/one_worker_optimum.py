"""How an optimal policy uses one worker: how large its batches are, and for how long the worker runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.scheduler.optimal.solver import Floats, OneWorker, Optimum


def use_of(batch_ns: Sequence[int], best: Optimum) -> tuple[float, float]:
    """The mean batch in rows, and the share of time in which the worker runs. `best`: the optimum of these times."""
    process = OneWorker(batch_ns, best.rate, len(best.table) - 1)
    table = np.asarray(best.table, dtype=np.int64)

    def average(of_batch: Floats) -> float:
        cost = np.r_[0.0, of_batch]
        return process.evaluate(table, np.stack([cost, np.zeros_like(cost)]))[0]

    return process.rate / average(np.ones_like(process.times)), average(process.times)
