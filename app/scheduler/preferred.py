"""The preferred batch size: the smallest whose throughput just exceeds the arrival rate (Khan et al., equation 1)."""

from __future__ import annotations

from .latency import Latency


def preferred_size(rate: float, latency: Latency, max_batch: int) -> int:
    """Smallest b with b / T(b) > `rate` (rows per second), else `max_batch`; 1 where no batch times are known.

    The paper's listing starts its scan at 2, so that a lone request waits for company for ever; here 1 is allowed.
    """
    if not latency.known:
        return 1
    for size in range(1, max_batch + 1):
        predicted = latency.predict(size)
        if predicted <= 0 or size * 1e9 / predicted > rate:
            return size
    return max_batch
