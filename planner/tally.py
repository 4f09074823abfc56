"""Counts and latencies of a simulated run, and the figures and the table made from them.

Latencies are counted in a histogram of fixed size with buckets 0.1 % wide, so that percentiles are accurate to 0.05 %
and memory does not grow with the number of requests. Counts and sums are integers, so that the parts of a run add up to
the same result in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .simulated_device import SimulatedDevice
from .simulated_front import SimulatedFront

_WIDTH = math.log(1.001)
_BUCKETS = int(math.log(1e15) / _WIDTH) + 2  # up to 1e15 ns, eleven days
_MS = 1e6
_S = 1e9


@dataclass(slots=True)
class Tally:
    """Counts of a run or of a part of it. Simulators append to `latencies`; `fold` moves them into the histogram."""

    requests: int = 0
    refused: int = 0  # not admitted
    expired: int = 0  # admitted, then dropped
    completed: int = 0
    units: int = 0
    rows: int = 0  # of all units
    nodes: int = 0
    total_ns: int = 0  # of all latencies
    least_ns: int = 1 << 62
    most_ns: int = 0
    busy_ns: int = 0  # of all nodes: time in which a unit ran
    unit_ns: int = 0  # of all nodes: time of all units
    front_ns: int = 0  # of all nodes: time in which the front was at work
    end_ns: int = 0
    latencies: list[int] = field(default_factory=list)
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BUCKETS, dtype=np.int64))

    def started(self, rows: int) -> None:
        self.units += 1
        self.rows += rows

    def fold(self) -> None:
        """Move `latencies` into the histogram."""
        if not self.latencies:
            return
        values = np.array(self.latencies, dtype=np.int64)
        self.latencies.clear()
        self.completed += len(values)
        self.total_ns += int(values.sum())
        self.least_ns = min(self.least_ns, int(values.min()))
        self.most_ns = max(self.most_ns, int(values.max()))
        buckets = np.minimum(np.log(np.maximum(values, 1)) / _WIDTH, _BUCKETS - 1).astype(np.int64)
        np.add.at(self.counts, buckets, 1)

    def close(self, end_ns: int, devices: Sequence[SimulatedDevice], fronts: Iterable[SimulatedFront] = ()) -> None:
        """Add the busy time of the nodes with these devices and fronts, which have ended."""
        self.nodes += len(devices)
        self.end_ns = max(self.end_ns, end_ns)
        for device in devices:
            self.busy_ns += device.busy_ns
            self.unit_ns += device.unit_ns
        self.front_ns += sum(front.busy_ns for front in fronts)

    def add(self, other: Tally) -> None:
        """Add another part of the run, which must be folded and closed."""
        for name in ("requests", "refused", "expired", "completed", "units", "rows", "nodes", "total_ns", "busy_ns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.unit_ns += other.unit_ns
        self.front_ns += other.front_ns
        self.least_ns = min(self.least_ns, other.least_ns)
        self.most_ns = max(self.most_ns, other.most_ns)
        self.end_ns = max(self.end_ns, other.end_ns)
        self.counts += other.counts

    def percentile(self, share: float) -> float | None:
        """The latency in ns that this share of the completed requests does not exceed; None if none completed."""
        if not self.completed:
            return None
        rank = max(1, math.ceil(share * self.completed))
        bucket = int(np.searchsorted(self.counts.cumsum(), rank))
        return min(max(math.exp((bucket + 0.5) * _WIDTH), self.least_ns), self.most_ns)


def summary(tally: Tally) -> dict[str, Any]:
    """The figures of a run, by their names in the JSON output. None if there is nothing to divide by.

    `mean_batch` counts rows without padding. `utilisation` is the share of time in which a node runs at least one unit,
    over all nodes. `goodput` is in requests per second, like `throughput`.
    """
    done, elapsed = tally.completed, tally.end_ns

    def ms(value: float | None) -> float | None:
        return None if value is None else value / _MS

    figures: dict[str, Any] = {
        "requests": tally.requests,
        "completed": done,
        "dropped": tally.refused + tally.expired,
        "mean_ms": tally.total_ns / done / _MS if done else None,
        "p50_ms": ms(tally.percentile(0.5)),
        "p90_ms": ms(tally.percentile(0.9)),
        "p99_ms": ms(tally.percentile(0.99)),
        "p999_ms": ms(tally.percentile(0.999)),
        "throughput": done / elapsed * _S if elapsed else None,
        "mean_batch": tally.rows / tally.units if tally.units else None,
        "utilisation": tally.busy_ns / (elapsed * tally.nodes) if elapsed else None,
        "busy_s_per_request": tally.unit_ns / done / _S if done else None,
    }
    # The scheduler drops calls at their deadline, even running ones, so all completed ones were in time.
    figures["goodput"] = figures["throughput"]
    return figures
