"""The arrival rate, the line of batch times and the preferred batch size (BatchMonitor, Khan et al.).

The preferred size is the smallest whose throughput just exceeds the arrival rate. It is computed in two ways:
`preferred_size` from the measured batch times, which operators see; and `algorithm_1` from the line, exactly as in the
paper, for the policy `preferred`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

_DEVIATIONS = 3.0
_LEAST_WEIGHT = 0.1  # of a window in `steady`: changes too slow to show in one window are followed over ten


class RateMonitor:
    """Rows per second over the last window that a tick closed. The count divides by the window's true length.

    One window of a second gives a rate of 300 to within 6 %, a rate of seven to within 40 %. That shows that something
    has changed, but is too noisy to choose a control table. So `steady` is the mean over the windows since the last
    change: a window off by more than three standard deviations of a Poisson count starts it anew.
    """

    __slots__ = ("_count", "_opened", "_windows", "rate", "steady")

    def __init__(self, now: int) -> None:
        self._opened = now
        self._count = 0
        self._windows = 0  # in `steady`
        self.rate = 0.0  # rows per second
        self.steady = 0.0  # rows per second

    def tick(self, now: int, rows: int) -> None:
        """So many rows have arrived since the last tick."""
        self._count += rows
        elapsed = now - self._opened
        if elapsed <= 0:
            return
        self.rate = self._count * 1e9 / elapsed
        expected = self.steady * elapsed / 1e9
        # Plus one: if hardly any row is expected, a single arrival is no change.
        if abs(self._count - expected) > _DEVIATIONS * sqrt(expected + 1):
            self._windows = 0
        self._windows += 1
        self.steady += max(_LEAST_WEIGHT, 1 / self._windows) * (self.rate - self.steady)
        self._count = 0
        self._opened = now


class Line(NamedTuple):
    """Batch time as a line, `alpha` + `beta` x rows, in nanoseconds. `residual`: root mean square error."""

    alpha: float = 0.0
    beta: float = 0.0
    residual: float = 0.0

    @property
    def known(self) -> bool:
        return self != Line()

    def predict(self, size: int) -> float:
        """Nanoseconds for a batch of `size`; at least 1, because the line may cross 0."""
        return max(1.0, self.alpha + self.beta * size)

    def scaled(self, factor: float) -> Line:
        return Line(*(factor * one for one in self))


def regression(batch_ns: Sequence[int]) -> Line:
    """The line of least squares through the measured times of sizes 1, 2, ...; one size alone has no slope.

    Its slope is at least 0. The line is for the policy `preferred` and for people to read. Predictions use the table of
    measured times (see `latency`), because measured curves bend and jump.
    """
    if not batch_ns:
        return Line()
    n = len(batch_ns)
    mean_rows, mean_ns = (n + 1) / 2, sum(batch_ns) / n
    both = sum((size - mean_rows) * (time - mean_ns) for size, time in enumerate(batch_ns, 1))
    beta = max(0.0, both / (n * (n * n - 1) / 12)) if n > 1 else 0.0
    alpha = mean_ns - beta * mean_rows
    square = sum((time - alpha - beta * size) ** 2 for size, time in enumerate(batch_ns, 1)) / n
    return Line(alpha, beta, sqrt(square))


def preferred_size(rate: float, time: Callable[[int], float], max_batch: int, first: int = 1) -> int:
    """Smallest b from `first` on with b / time(b) > `rate` (rows per second), else `max_batch`; `first` if times are 0,
    that is, unknown.
    """
    for size in range(first, max_batch + 1):
        predicted = time(size)
        if predicted <= 0 or size * 1e9 / predicted > rate:
            return size
    return max_batch


def algorithm_1(rate: float, line: Line, max_batch: int, handover_ns: int = 0) -> int:
    """The preferred size as BatchMonitor sets it: B = 2, 3, ... until rate < B / T(B), else the largest batch.

    `rate` in rows per second, which is the count in the paper's window of 1 s. T is the line plus the hand-over: the
    line is fitted to computing alone, but the paper's server measures both. The scan starts at 2, so the result is 1
    only if no larger batch is allowed, or nothing is known of batch times.
    """
    if not line.known:
        return 1
    return preferred_size(rate, lambda size: line.predict(size) + handover_ns, max_batch, 2)
