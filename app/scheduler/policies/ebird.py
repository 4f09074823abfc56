"""Elastic batching (Ebird, Algorithm 1): the largest idle worker that the ready rows fill, again and again.

R = min(ready rows, MaxInf - rows alive). Of the idle workers, largest first, the first with a capacity of at most R is
given exactly so many rows; then again with what is left. A batch is never padded and never partly filled: where R is
smaller than every idle worker nothing starts, though the device has room, until a smaller worker returns. That is the
letter, and a latency trap while the small workers are busy.

The paper's workers for a largest batch of 32 are (1, 1, 2, 4, 8, 16): every number up to 32 is a sum of some of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, KeyView


def workers_for(max_batch: int) -> tuple[int, ...]:
    """The paper's capacities: 1, and the powers of two that add up with it to `max_batch` where that is one itself."""
    powers = [1 << i for i in range(max_batch.bit_length() - 1)]
    return (1, *powers)


class Ebird:
    holds = False

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        ready = min(view.ready, view.room)
        for capacity in idle:
            if capacity <= ready:
                return Cut(capacity, capacity, "full" if capacity == view.full else "idle")
        return Hold(None)
