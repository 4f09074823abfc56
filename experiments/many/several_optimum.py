"""The least mean latency of any policy for several workers that do not slow each other, for small batches.

Poisson arrivals; a batch of b rows takes T(b). The semi-Markov decision process, seen while a worker is free:

    state     rows that wait, and what each other worker has left of its batch, in steps of a time grid; 0: it is free
    action    run b of the rows that wait; or wait for the next arrival, one step at most
    cost      rows that wait, integrated, plus b T(b) for each batch; divided by the rate

All is exact but what falls between two steps: T(b), and what others have left when a row arrives. It counts as being at
one of both by chance, which makes the mean found a little wrong. So the policy is simulated, too: it decides by the
values of states, interpolated. The number of states is why batches, and so times, must be small.

Solved by relative value iteration of the cost less the average times the time, as `app.scheduler.optimal.two_workers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from app.scheduler.optimal.solver import poisson

_WAITING = 56  # rows that wait, at most; beyond them the value grows as between the last two
_ROUNDS = 3000
_STRIDE = 0.9  # of each round's change: a process that returns in so many steps would alternate without end
_EVERY = 5  # rounds with one average
_TOLERANCE = 2e-3  # of the mean latency
_COMMON = 20  # rows that wait: states with more are rare

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Optimum:
    """`mean`: the least mean latency, in the unit of `times`. `rate`: rows in one such unit."""

    def __init__(self, times: Sequence[float], rate: float, workers: int, steps: int) -> None:
        self.times, self.rate, self.workers, self.steps = times, rate, workers, steps
        self.step = max(times) / steps
        self.left = np.array(list(combinations_with_replacement(range(steps + 1), workers - 1)), dtype=np.int64)
        self.index = {tuple(left): number for number, left in enumerate(self.left.tolist())}
        self.passed = self._numbers(np.maximum(self.left - 1, 0))
        self.arrivals = [self._arrivals(count * self.step) for count in range(steps + 1)]
        self.values = self._solve()

    def _numbers(self, left: Ints) -> Ints:
        return np.array([self.index[tuple(one)] for one in left.tolist()])

    def _arrivals(self, time: float) -> tuple[Floats, Floats]:
        """Chances to get from so many waiting to so many, and the mean number beyond the last."""
        count = np.arange(_WAITING + 1)
        if not time:
            return np.eye(_WAITING + 1), np.zeros(_WAITING + 1)
        chances = poisson(np.array([self.rate * time]))[0]
        then = count[:, None] + np.arange(len(chances))
        matrix = np.zeros((_WAITING + 1, _WAITING + 1))
        np.add.at(matrix, (count[:, None], np.minimum(then, _WAITING)), chances)
        return matrix, np.maximum(then - _WAITING, 0) @ chances

    def _solve(self) -> Floats:
        """By action, rows that wait and what others have left: what is to come, relative to the average."""
        peak = self.workers * max(rows / time for rows, time in enumerate(self.times, 1))
        work = np.arange(_WAITING + 1)[:, None] + self.left.sum(axis=1) * self.step * peak / self.workers
        value, average = work**2 / (2 * (peak - self.rate)), self.rate * self.times[0]
        usual = self.times[0] / self.workers / 2  # about the time of a decision
        for number in range(_ROUNDS):
            actions = self._outcomes(value, average)
            new = value + _STRIDE * (actions.min(axis=0) - value)
            grows = (new - value)[:_COMMON]
            value = new - new[0, 0]
            close = _TOLERANCE * average * usual
            if np.ptp(grows) < close and abs(grows.mean()) < close:
                break
            if number % _EVERY == _EVERY - 1:
                average += grows.mean() / usual / 2
        self.mean = average / self.rate
        return actions

    def _outcomes(self, value: Floats, average: float) -> Floats:
        """By action, rows that wait and what others have left: cost less the average, and the value then."""
        found = np.full((len(self.times) + 1, *value.shape), np.inf)
        waiting = np.arange(_WAITING + 1)[:, None]
        slope = value[-1, 0] - value[-2, 0]
        more = np.concatenate([value[1:], value[-1:] + slope])
        mean = self.rate * self.step
        arrives = -np.expm1(-mean)
        late = (arrives - mean * np.exp(-mean)) / mean  # how far into the step, if a row arrives in it, else 0
        later = (arrives - late) * more + late * more[:, self.passed] + (1 - arrives) * value[:, self.passed]
        found[0] = (waiting - average) * arrives / self.rate + later
        found[0, :, 0] = (waiting[:, 0] - average) / self.rate + more[:, 0]  # all are free
        found[0, -1] = np.inf
        for rows, time in enumerate(self.times, 1):
            low = int(time / self.step + 1e-9)
            share = time / self.step - low
            after = (1 - share) * self._started(value, average, slope, low)
            if share > 1e-9:
                after += share * self._started(value, average, slope, low + 1)
            found[rows, rows:] = rows * time + after[: _WAITING + 1 - rows]
        return found

    def _started(self, value: Floats, average: float, slope: float, steps: int) -> Floats:
        """The same once a batch of so many steps has started, without its own time."""
        every = np.sort(np.column_stack([self.left, np.full(len(self.left), steps)]), axis=1)
        then = self._numbers(every[:, 1:] - every[:, :1])
        waiting, found = np.arange(_WAITING + 1)[:, None], np.empty(value.shape)
        for spent in np.unique(every[:, 0]):
            chosen = np.nonzero(every[:, 0] == spent)[0]
            chances, beyond = self.arrivals[spent]
            time = spent * self.step
            cost = (waiting - average) * time + self.rate * time**2 / 2 + (beyond * slope)[:, None]
            found[:, chosen] = chances @ value[:, then[chosen]] + cost
        return found

    def serve(self, waiting: int, left: Sequence[float]) -> int:
        """Rows to run, 0 for wait, where the other workers have so much left."""
        waiting = min(waiting, _WAITING - 1)
        return int(np.argmin(sum(share * self.values[:, waiting, at] for share, at in self._around(left))))

    def _around(self, left: Sequence[float]) -> Iterator[tuple[float, int]]:
        """The states around, with their shares: corners of a simplex (H. Kuhn, 1960), one more than others."""
        place = np.minimum(np.array(left) / self.step, self.steps)
        corner = np.floor(place + 1e-9)
        over = place - corner
        before = 1.0
        for axis in np.argsort(-over):
            if before - over[axis] > 1e-9:
                yield before - over[axis], self.index[tuple(np.sort(corner).astype(int).tolist())]
            corner[axis] += 1
            before = over[axis]
        if before > 1e-9:
            yield before, self.index[tuple(np.sort(corner).astype(int).tolist())]

    def latencies(self, arrivals: Floats) -> Floats:
        """Of each row, if this policy serves them; it decides again after each step of the grid."""
        found = np.zeros(len(arrivals))
        ends, now, started = [0.0] * self.workers, 0.0, 0
        while started < len(arrivals):
            waiting = int(np.searchsorted(arrivals, now, "right")) - started
            left = [max(0.0, end - now) for end in ends]
            rows = self.serve(waiting, left[1:]) if waiting and not left[0] else 0
            if started + waiting == len(arrivals) and not any(left):
                rows = min(waiting, len(self.times))  # no other comes
            if rows:
                ends[0] = now + self.times[rows - 1]
                found[started : started + rows] = ends[0] - arrivals[started : started + rows]
                started += rows
                ends.sort()
            elif left[0]:
                now = ends[0]
            else:
                coming = arrivals[started + waiting :][:1].tolist()
                now = min([*coming, *[now + self.step] * (waiting > 0 or not coming)])
        return found
