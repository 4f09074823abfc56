"""The most calls that two workers can end in time if all arrivals are known beforehand: a bound for every policy.

Rows have equal deadlines, so batches are runs of rows in order of arrival; between them rows may be left out. For each
row and each pair of times at which the workers are free, the fewest rows lost so far are kept. Times at which workers
are free are rounded down to a grid, in favour of the bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GRID = 100  # steps in the time that a call has
_LOST = 25  # more rows lost than the best state has: such states are given up, in no run seen was one of use
_NONE = 1e9


def in_time(fixed_ms: float, row_ms: float, deadline_ms: float, rate: float, rows: int = 3_000, seed: int = 0) -> float:
    """The share of so many Poisson arrivals, at `rate` per second, that can end in time. T(b) = fixed + row x b ms."""
    step = deadline_ms / _GRID
    arrivals = np.random.default_rng(seed).exponential(1e3 / rate, rows).cumsum() / step
    base = np.floor(arrivals).astype(np.int64)  # a worker that is free earlier is free when the row comes
    times = (fixed_ms + row_ms * np.arange(1, int((deadline_ms - fixed_ms) / row_ms) + 1)) / step
    states: dict[int, NDArray[np.float64]] = {}
    fewest = _NONE

    def reach(row: int, one: NDArray[np.int64], other: NDArray[np.int64], lost: NDArray[np.float64]) -> None:
        nonlocal fewest
        if row == rows:
            fewest = min(fewest, float(lost.min()))
            return
        table = states.setdefault(row, np.full((_GRID + 2, _GRID + 2), _NONE))
        free = np.sort(np.clip(np.stack([one, other]) - base[row], 0, _GRID + 1), axis=0)
        np.minimum.at(table, (free[0], free[1]), lost)

    nothing = np.zeros(1, dtype=np.int64)
    reach(0, nothing, nothing, np.zeros(1))
    for row in range(rows):
        table = _undominated(states.pop(row))
        one, other = np.nonzero(table < table.min() + _LOST)
        lost = table[one, other]
        one, other = one + base[row], other + base[row]
        reach(row + 1, one, other, lost + 1)
        for size, time in enumerate(times[: rows - row], 1):
            ends = np.maximum(one, arrivals[row + size - 1]) + time
            timely = ends <= arrivals[row] + _GRID + 1
            if not timely.any():
                break
            reach(row + size, np.floor(ends[timely]).astype(np.int64), other[timely], lost[timely])
    return 1 - fewest / rows


def _undominated(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without states that lose no fewer rows than one whose workers are free no later."""
    least = np.minimum.accumulate(np.minimum.accumulate(table, axis=0), axis=1)
    sooner = np.full_like(table, _NONE)
    sooner[1:] = least[:-1]
    sooner[:, 1:] = np.minimum(sooner[:, 1:], least[:, :-1])
    return np.where(table < sooner, table, _NONE)
