"""Keeps a control table only if its gain is significant, given the errors of the batch times.

What that means: docs/theory/tables.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import hypot

import numpy as np

from app.scheduler.optimal import solver
from app.scheduler.optimal.solver import Optimum

_CURVES = 16
_OVERLOADED = 1e30  # above the mean latency of any policy that keeps up
_AWAY = 1.5  # standard errors by which each size is perturbed
_SIGNIFICANT = 3.0  # standard errors
_WORTH = 0.001  # share of the mean latency: a smaller gain is not worth a table of its own

Times = Sequence[int]


def perturbed(batch_ns: Times, errors: Sequence[float]) -> list[tuple[int, ...]]:
    """Perturbed curves, the same at every call; none if the times are exact."""
    if not any(errors):
        return []
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(_CURVES, len(batch_ns)))
    bounded = np.minimum(np.asarray(errors[: len(batch_ns)]), 0.5)
    curves = np.asarray(batch_ns) * (1 + _AWAY * signs * bounded)
    return [tuple(curve) for curve in np.maximum(1, curves.round()).astype(int).tolist()]


def sizes_of(sizes: Sequence[int], batch_ns: Times, errors: Sequence[float]) -> tuple[int, ...]:
    """By rows: the size at which they are run. Rows are padded only if the larger size is significantly faster."""

    def faster(size: int, rows: int) -> bool:
        more, fewer = batch_ns[size - 1], batch_ns[rows - 1]
        return fewer - more > _SIGNIFICANT * hypot(more * errors[size - 1], fewer * errors[rows - 1])

    return tuple(size if faster(size, rows) else rows for rows, size in enumerate(sizes, 1))


def kept(best: Optimum, batch_ns: Times, curves: Sequence[Times]) -> Optimum:
    """`best` if it is better than serving all waiting rows on its own curve and every other, else serving all.

    `best.sizes` as from `sizes_of`.
    """
    largest = len(batch_ns)
    every = tuple(min(rows, largest) for rows in range(len(best.table)))
    if best.table == every:
        return best

    def mean_ns(curve: Times, table: Sequence[int]) -> float:
        times = [curve[size - 1] for size in best.sizes]
        try:
            return solver.evaluate(times, best.rate, table, pad=False).mean_ns
        except ValueError:  # it does not keep up: what serves faster falls behind more slowly
            return _OVERLOADED * times[table[-1] - 1] / table[-1]

    better = mean_ns(batch_ns, best.table) < (1 - _WORTH) * mean_ns(batch_ns, every)
    if better and all(mean_ns(curve, best.table) < mean_ns(curve, every) for curve in curves):
        return best
    return replace(best, table=every, tail=largest)
