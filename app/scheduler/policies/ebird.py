"""Elastic batching (Ebird, Algorithm 1): the largest idle worker that the ready rows fill, again and again.

A batch is never padded or partly filled: with fewer rows than the smallest idle worker takes, nothing starts. That
costs latency, but it is what the paper says (docs/theory/policies.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows
from app.scheduler.policies.offer import Offer
from app.scheduler.types import DeviceSpec


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
        ready = min(offer.ready.count, offer.room + offer.ready.started)
        for capacity in offer.capacities():
            if capacity <= ready:
                return cut_rows(offer, capacity)
        return Hold(None)
