"""The arrival rate, the line of batch times and the preferred batch size (BatchMonitor, Khan et al.).

The preferred size is the smallest whose throughput just exceeds the arrival rate. There are two of them:
`preferred_size` is what operators see, from the measured batch times; `algorithm_1` is the paper's listing to the
letter, from the line, for the policy `preferred`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

_DEVIATIONS = 3.0
_LEAST_WEIGHT = 0.1  # of a window in `steady`: what changes too slowly to be seen in one window is followed in ten

_FORGET = 0.98  # weight of the past when a batch is observed: about the last 50 count
_PRIOR = 20.0  # batches that the profile counts as
_ANCHOR = 0.25  # rows squared: far below the variance of any two sizes seen in turn, far above rounding
_CLIP = 4.0  # a batch is moved to within so many residuals of the line: a page fault is not a trend


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


class Regression:
    """Batch time as a line, alpha + beta x rows, kept by weighted least squares with forgetting (section III).

    The line starts as the fit on the profile, which counts as so many past batches and fades like them. Traffic may
    bring only one batch size for hours; then there is no slope in what was seen, and the profile's slope, scaled to the
    level seen, takes its place: the slope is drawn to it with the weight of a quarter of a row of variance. Without a
    profile and with one size the slope is 0, which claims nothing.

    The line is what the policy `preferred` and the statistics use. Batches are not predicted by it: measured curves
    bend and jump (see `latency`). `alpha` and `beta` are in nanoseconds and nanoseconds per row; `residual` is the root
    mean square error.
    """

    __slots__ = ("_count", "_line", "_mean_ns", "_mean_rows", "_rows_ns", "_square", "_variance", "alpha", "beta")

    def __init__(self, batch_ns: Sequence[int] = ()) -> None:
        self._count = 0.0  # weight of all that was seen
        self._mean_rows = self._mean_ns = 0.0
        self._variance = self._rows_ns = 0.0  # weighted mean square of rows about their mean; of rows with ns
        self._square = 0.0  # weighted mean square error
        self._line = (0.0, 0.0)
        self.alpha = self.beta = 0.0
        if batch_ns:
            self._begin(batch_ns)

    def _begin(self, batch_ns: Sequence[int]) -> None:
        sizes = range(1, len(batch_ns) + 1)
        n = len(batch_ns)
        mean_rows, mean_ns = sum(sizes) / n, sum(batch_ns) / n
        self._variance = sum((size - mean_rows) ** 2 for size in sizes) / n
        self._rows_ns = sum((b - mean_rows) * (t - mean_ns) for b, t in zip(sizes, batch_ns, strict=True)) / n
        self._count, self._mean_rows, self._mean_ns = _PRIOR, mean_rows, mean_ns
        slope = max(0.0, self._rows_ns / self._variance) if self._variance else 0.0
        self._line = (mean_ns - slope * mean_rows, slope)
        self._fit()
        self._square = sum((t - self.predict(b)) ** 2 for b, t in zip(sizes, batch_ns, strict=True)) / n

    @property
    def known(self) -> bool:
        return self._count > 0

    @property
    def residual(self) -> float:
        return sqrt(self._square)

    def predict(self, size: int) -> float:
        """Nanoseconds for a batch of `size`; 0 while nothing is known. At least 1, wherever the line may cross 0."""
        return max(1.0, self.alpha + self.beta * size) if self._count else 0.0

    def observe(self, size: int, compute_ns: int) -> None:
        """A batch of `size` took so long."""
        if compute_ns <= 0:
            return
        time = float(compute_ns)
        if self._count:
            predicted = self.predict(size)
            error = time - predicted
            if not -predicted <= error <= predicted:  # up to twice the prediction counts in full
                room = max(_CLIP * self.residual, predicted)
                error = max(-room, min(error, room))
                time = predicted + error
            self._square += (1 - _FORGET) * (error * error - self._square)
        self._count = self._count * _FORGET + 1
        share = 1 / self._count
        rows, ns = size - self._mean_rows, time - self._mean_ns
        self._mean_rows += share * rows
        self._mean_ns += share * ns
        self._variance += share * ((1 - share) * rows * rows - self._variance)
        self._rows_ns += share * ((1 - share) * rows * ns - self._rows_ns)
        self._fit()

    def _fit(self) -> None:
        alpha, slope = self._line
        expected = max(0.0, alpha) + slope * self._mean_rows  # a line that crosses 0 near here would give any slope
        anchor = slope * self._mean_ns / expected if expected > 0 else slope
        self.beta = max(0.0, (self._rows_ns + _ANCHOR * anchor) / (self._variance + _ANCHOR))
        self.alpha = self._mean_ns - self.beta * self._mean_rows


def preferred_size(rate: float, time: Callable[[int], int], max_batch: int) -> int:
    """Smallest b with b / time(b) > `rate` (rows per second), else `max_batch`; 1 where times are 0, for not known."""
    for size in range(1, max_batch + 1):
        predicted = time(size)
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
