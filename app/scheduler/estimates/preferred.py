"""The preferred batch size: the smallest whose throughput just exceeds the arrival rate (Khan et al., equation 1).

Two of them. `preferred_size` is what operators see: from the measured batch times, and 1 is allowed. `algorithm_1` is
the paper's listing to the letter, from the linear regression, for the preset.
"""

from __future__ import annotations

from typing import Protocol

from app.scheduler.estimates.regression import Regression


class BatchTimes(Protocol):
    """What predicts batch times, as `Latency` does."""

    @property
    def known(self) -> bool: ...
    def predict(self, size: int, running: int = 1, length: int = 0, lead_ns: int = 0) -> int: ...


def preferred_size(rate: float, latency: BatchTimes, max_batch: int, lead_ns: int = 0) -> int:
    """Smallest b with b / T(b) > `rate` (rows per second), else `max_batch`; 1 where no batch times are known.

    T holds the hand-over, but for what of it passes while the worker ends its last unit: `lead_ns`.
    """
    if not latency.known:
        return 1
    for size in range(1, max_batch + 1):
        predicted = latency.predict(size, lead_ns=lead_ns)
        if predicted <= 0 or size * 1e9 / predicted > rate:
            return size
    return max_batch


def algorithm_1(rate: float, regression: Regression, max_batch: int, handover_ns: int = 0) -> int:
    """The preferred size as BatchMonitor sets it: B = 2, 3, ... until rate < B / T(B), else the largest batch.

    `rate` in rows per second, which for the paper's window of 1 s is its count. T is the line, which is fitted to
    computing alone, and the hand-over: the paper's server sees both. The scan starts at 2, so 1 is never an answer,
    except where no larger batch is allowed or nothing is known of batch times.
    """
    if not regression.known:
        return 1
    for size in range(2, max_batch + 1):
        if rate < size * 1e9 / (regression.predict(size) + handover_ns):
            return size
    return max_batch
