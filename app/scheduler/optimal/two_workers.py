"""Solves for the best batching policy on two workers, and nearly the best on more.

The state is the number of waiting rows and the time that the other worker has left, whenever one worker is free. Solved
by relative value iteration (docs/theory/tables.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.scheduler.optimal.process import Ints, Process

_ROUNDS = 2000  # it ends after 30 to 300, at load 0.98 after up to 1800
_STRIDE = 0.9  # share of each round's change that is applied: a periodic process would alternate for ever
_EVERY = 10  # rounds between updates of the average
_IMPROVED = 3  # rounds between choices of the best actions: choosing takes longer than following

_COARSE = 0.01  # tolerance from which single precision is enough
_TINY = 1e-12  # what is less counts as 0: the processor is slow with numbers below the smallest normal one

Floats = NDArray[Any]  # of either precision


@dataclass(frozen=True, slots=True)
class Solution:
    """A stationary policy and its mean latency. `table[column][waiting]`: rows to run, 0 for wait. `settled`: whether
    the bounds of the mean have met.
    """

    table: tuple[tuple[int, ...], ...]
    rate: float  # rows per second
    mean_ns: float
    settled: bool


def solve(
    process: Process,
    allowed: NDArray[np.bool_],
    *,
    tolerance: float = 1e-3,
    rounds: int = _ROUNDS,
    errors: Sequence[float] = (),
) -> Solution:
    """The policy with the least mean latency, of the actions [rows, column, waiting] that are `allowed`.

    `tolerance`: how far apart the bounds of the mean latency may be in the end, as a share of it; after `rounds` the
    iteration ends in any case. `errors`: by rows, standard errors of batch times while all run, as shares of them; each
    batch then counts as late by its own.
    """
    against = np.where(allowed, 0.0, np.inf)
    if any(errors):
        against += process.doubt(np.asarray(errors))
    return _Iteration(process, tolerance).run(against, rounds)


class _Iteration:
    """Relative value iteration; as the best actions are not chosen in each round, it is modified policy iteration.

    The measures of a state: cost, time, and the time that each row of the other unit gains until this unit ends. Arrays
    are reused, as making them takes longer than filling them.
    """

    def __init__(self, process: Process, tolerance: float) -> None:
        self.process, self.tolerance = process, tolerance
        kind = np.float32 if tolerance >= _COARSE else np.float64
        self.cost, self.time = (one.astype(kind) for one in process.at_once())
        actions, columns, states = self.cost.shape
        self.value: Floats = process.start().astype(kind)
        self.chances = np.where(process.chances < _TINY, 0.0, process.chances).astype(kind)
        self.share, self.first, self.over = (one.astype(kind) for one in (process.share, process.first, process.over))
        self.ends, self.gain = (one.astype(kind)[:, None] for one in (process.ends, process.gain))
        self.meets = process.meets.T.astype(kind)
        #: What may have arrived, from each [measure, (column, time), waiting].
        self.then = np.empty((3, columns * self.chances.shape[1] // states, states), kind)
        self.low, self.high = (np.empty((3, (actions - 1) * columns, states), kind) for _ in range(2))
        self.after = np.zeros((3, actions, columns, states), kind)  # [measure, rows, column, waiting]
        self.spent = np.empty_like(self.cost)

    def run(self, against: Floats, rounds: int) -> Solution:
        """Iterate with the best actions, where `against` [rows, column, waiting] is added to what each costs.

        If units always take the same time, their distances never change, and the average settles late.
        """
        process, value, average = self.process, self.value, self.process.average
        added = self.cost + against.astype(self.cost.dtype)
        for number in range(rounds):
            np.matmul(value.reshape(-1, value.shape[2]), self.chances, out=self.then.reshape(3 * value.shape[1], -1))
            waits = self._waits(value)
            if number % _IMPROVED == 0:
                actions = self._best(added, waits, average)
            change = (self._taken(actions, waits) - value) * self.cost.dtype.type(_STRIDE)
            cost, time, _ = change
            value = value + change
            value -= value[:, :1, :1]
            value[2][value[2] < _TINY] = 0.0
            grows, step = cost - average * time, float(time.mean())
            settled = bool(np.ptp(grows) < self.tolerance * average * step)
            if settled or number % _EVERY == _EVERY - 1:
                average += float(grows.mean()) / step
            if settled:
                break
        table = tuple(map(tuple, actions[:, :-1].tolist()))
        mean_ns = average / process.rate * process.unit
        return Solution(table, process.rate * 1e9 / process.unit, mean_ns, settled)

    def _best(self, added: Floats, waits: Floats, average: float) -> Ints:
        """The action [column, waiting] with the least of cost less average times time."""
        process, after = self.process, self.after
        _, _, columns, states = after.shape
        low = np.take(self.then, process.low, axis=1, out=self.low, mode="clip")
        high = np.take(self.then, process.high, axis=1, out=self.high, mode="clip")
        high -= low
        high *= self.share
        low += high
        low[0] += self.over * low[2]
        for rows, found in enumerate(low.reshape(3, -1, columns, states).swapaxes(0, 1), 1):
            after[:, rows, :, rows:] = found[:, :, :-rows]
        after[:, 0] = waits
        spent = np.add(after[1], self.time, out=self.spent)
        spent *= -average
        spent += after[0]
        spent += added
        best: Ints = spent.argmin(axis=0)
        return best

    def _taken(self, actions: Ints, waits: Floats) -> Floats:
        """The measures [measure, column, waiting] if these actions are taken."""
        process = self.process
        column, waiting = np.ogrid[: actions.shape[0], : actions.shape[1]]
        place = np.maximum(actions - 1, 0) * len(actions) + column
        low, high = (self.then[:, one[place], waiting - actions] for one in (process.low, process.high))
        after = low + self.share[place, 0] * (high - low)
        after[0] += self.over[place, 0] * after[2]
        after[2] *= self.first[place, 0]
        after = np.where(actions == 0, waits, after)
        after[0] += self.cost[actions, column, waiting]
        after[1] += self.time[actions, column, waiting]
        return after

    def _waits(self, value: Floats) -> Floats:
        """The measures of what follows if nothing is run."""
        more = np.concatenate([value[:, :, 1:], value[:, :, -1:]], axis=2)
        after: Floats = value[:, self.process.ended] * self.ends + self.meets @ more
        after[2] += self.gain
        return after
