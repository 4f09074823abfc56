"""The arrival rate, the line of batch times and the preferred batch size (BatchMonitor, Khan et al.).

The preferred size is the smallest whose throughput just exceeds the arrival rate. There are two of them:
`preferred_size` is what operators see, from the measured batch times; `algorithm_1` is the paper's listing to the
letter, from the line, for the policy `preferred`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

_DEVIATIONS = 3.0
_LEAST_WEIGHT = 0.1  # of a window in `steady`: what changes too slowly to be seen in one window is followed in ten


class RateMonitor:
    """Rows per second over the last window that a tick closed. The count divides by the window's true length.

    A window of one second counts 300 arrivals to within 6 %, seven to within 40 %: enough to say that something has
    changed, too little to choose a control table by. So there is a second figure, `steady`, the mean over windows since
    the last change: a window off by more than three standard deviations of a Poisson count begins it anew.
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
        # One more than expected: where hardly anything is, a single arrival is no change.
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
        """Nanoseconds for a batch of `size`. At least 1, wherever the line may cross 0."""
        return max(1.0, self.alpha + self.beta * size)

    def scaled(self, factor: float) -> Line:
        return Line(*(factor * one for one in self))


def regression(batch_ns: Sequence[int]) -> Line:
    """The line of least squares through the measured times of sizes 1, 2, ...; one size alone has no slope.

    It never falls. Times are predicted by the table (see `latency`), since measured curves bend and jump; the line is
    what the policy `preferred` scans, and for people to read.
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


def preferred_size(rate: float, time: Callable[[int], int], max_batch: int) -> int:
    """Smallest b with b / time(b) > `rate` (rows per second), else `max_batch`; 1 where times are 0, for not known."""
    for size in range(1, max_batch + 1):
        predicted = time(size)
        if predicted <= 0 or size * 1e9 / predicted > rate:
            return size
    return max_batch


def algorithm_1(rate: float, line: Line, max_batch: int, handover_ns: int = 0) -> int:
    """The preferred size as BatchMonitor sets it: B = 2, 3, ... until rate < B / T(B), else the largest batch.

    `rate` in rows per second, which for the paper's window of 1 s is its count. T is the line, which is fitted to
    computing alone, and the hand-over: the paper's server sees both. The scan starts at 2, so 1 is never an answer,
    except where no larger batch is allowed or nothing is known of batch times.
    """
    if not line.known:
        return 1
    for size in range(2, max_batch + 1):
        if rate < size * 1e9 / (line.predict(size) + handover_ns):
            return size
    return max_batch
