"""An upper bound of the mean latency of serving all waiting rows (`no_wait`), in closed form.

One device that runs one batch at a time, Poisson arrivals, batches of any size b that take alpha b + tau (Y. Inoue,
arXiv 1912.06322).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def bound_ns(batch_ns: Sequence[int], rate: float) -> float | None:
    """Nanoseconds, at `rate` rows per second; None if no line above the times keeps up with that rate.

    Times that are not on a line are bounded by lines through two of them that lie above all others; the lowest bound is
    returned. It assumes unlimited batches: near the peak, where more rows wait than a batch takes, the mean is higher.
    """
    return min((found for line in _lines(batch_ns) if (found := _of_line(*line, rate / 1e9)) is not None), default=None)


def _of_line(alpha: float, tau: float, rate: float) -> float | None:
    """The bound for batches of alpha b + tau, in units of time of which `rate` is the inverse.

    A batch has the rows that arrived during the one before, or one row if none did. `none`: the least chance of that,
    which has no closed form; the mean falls as it rises. `rows`, `squares`: E B and E B^2 of a batch of B rows, which
    takes D; `spent`: E D^2. A row waits for half of the batch until the next begins, and for its own.
    """
    r, fixed = rate * alpha, rate * tau
    if r >= 1:
        return None
    none = max(0.0, 1 - r - fixed)
    rows = (fixed + none) / (1 - r)
    squares = (rows * r * (1 + 2 * fixed) + fixed + fixed**2 + none) / (1 - r**2)
    spent = alpha**2 * squares + 2 * alpha * tau * rows + tau**2
    return (rate * spent / 2 + alpha * squares + tau * rows) / rows


def _lines(batch_ns: Sequence[int]) -> list[tuple[float, float]]:
    """Slope and offset of each edge of the upper concave hull of the times; for a single time, a flat line."""
    hull: list[tuple[int, float]] = []
    for point in enumerate(map(float, batch_ns), 1):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    if len(hull) == 1:
        return [(0.0, hull[0][1])]
    edges = ((max(0.0, _slope(left, right)), left) for left, right in pairwise(hull))
    return [(slope, time - slope * rows) for slope, (rows, time) in edges]


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
