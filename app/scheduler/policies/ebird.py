"""Elastic batching (Ebird, Algorithm 1): the largest idle worker that the ready rows fill, again and again.

R = min(ready rows, MaxInf - rows alive). The largest idle worker whose capacity is at most R gets exactly that many
rows; this is repeated with the remaining rows. A batch is never padded or partly filled. So if R is smaller than every
idle worker, nothing starts until a smaller worker is idle, although the device has room. That costs latency while the
small workers are busy, but it is what the paper says.

The paper's workers for a largest batch of 32 are (1, 1, 2, 4, 8, 16): every number up to 32 is a sum of some of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.scheduler.policies.base import Cut, Hold, Policy
from app.scheduler.policies.offer import Offer
from app.scheduler.types import DeviceSpec, Formed


class Ebird(Policy):
    """The paper's scheduler, to the letter. A busy worker is never handed a second unit."""

    name = "ebird"

    @classmethod
    def workers(cls, max_batch: int) -> tuple[int, ...]:
        """1, and powers of two: if `max_batch` is a power of two, all of them add up to it."""
        return (1, *(1 << i for i in range(max_batch.bit_length() - 1)))

    def check(self, device: DeviceSpec, others: Mapping[str, Policy]) -> None:
        super().check(device, others)
        capacities = [worker.capacity for worker in device.workers]
        if 1 not in capacities:
            raise ValueError(f"workers: expected one of capacity 1 for the policy {self.name}, got {capacities}")

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        ready = min(offer.waiting, offer.able)
        for capacity in offer.capacities():
            if capacity <= ready:
                return Cut(capacity, capacity, Formed.FULL if capacity == offer.full else Formed.IDLE)
        return Hold(None)
