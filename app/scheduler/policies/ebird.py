"""Elastic batching (Ebird, Algorithm 1): the largest idle worker that the ready rows fill, again and again.

R = min(ready rows, MaxInf - rows alive). Of the idle workers, largest first, the first with a capacity of at most R is
given exactly so many rows; then again with what is left. A batch is never padded and never partly filled: where R is
smaller than every idle worker nothing starts, though the device has room, until a smaller worker returns. That is the
letter, and a latency trap while the small workers are busy.

The paper's workers for a largest batch of 32 are (1, 1, 2, 4, 8, 16): every number up to 32 is a sum of some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.scheduler.policies.base import Cut, Hold, Policy
from app.scheduler.policies.view import KeyView
from app.scheduler.types import DeviceSpec, Formed


class Ebird(Policy):
    """The paper's scheduler, to the letter. Its workers are idle or not: behind a unit at work there is no place."""

    name = "ebird"
    owns_device = True

    @classmethod
    def workers(cls, max_batch: int) -> tuple[int, ...]:
        """1, and the powers of two that add up with it to `max_batch` where that is one itself."""
        return (1, *(1 << i for i in range(max_batch.bit_length() - 1)))

    def check(self, device: DeviceSpec, others: Mapping[str, Policy]) -> None:
        super().check(device, others)
        capacities = [worker.capacity for worker in device.workers]
        if 1 not in capacities:
            raise ValueError(f"workers: expected one of capacity 1 for the policy {self.name}, got {capacities}")

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        ready = min(view.ready, view.room)
        for capacity in idle:
            if capacity <= ready:
                return Cut(capacity, capacity, Formed.FULL if capacity == view.full else Formed.IDLE)
        return Hold(None)
