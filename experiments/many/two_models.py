"""The least mean latency of any order and batch sizes for two models on one device: a yardstick.

One unit runs at a time, Poisson arrivals of each model, batch times T_i(b). The semi-Markov decision process:

    state     rows of each model that wait, seen whenever the device is free
    action    run b rows of model i; wait only where nothing does
    time      T_i(b)
    cost      rows in the system, integrated over that time; by Little's law the average over the rate is the mean

Howard's policy iteration with one linear system for each policy, as `app.scheduler.optimal.solver`. The relative value
is continued beyond the last state as a straight line, so that rows which arrive there are not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.scheduler.estimates.parts import padded

Floats = NDArray[np.float64]

_ROUNDS = 60  # policy iteration ends after about ten
_TOLERANCE = 1e-9  # of the average cost: an action must gain more to replace another, or ties would alternate


@dataclass(frozen=True)
class Optimum:
    """`actions[table[m][n]]`: model and rows to run where m rows of the first and n of the second model wait."""

    actions: tuple[tuple[int, int], ...]
    table: NDArray[np.int64]
    mean_ns: float

    def choose(self, waiting: Sequence[int]) -> tuple[int, int]:
        """Beyond the table as at its edge."""
        last = self.table.shape
        return self.actions[self.table[min(waiting[0], last[0] - 1), min(waiting[1], last[1] - 1)]]


def solve(times_ns: Sequence[Sequence[int]], rates: Sequence[float], *, states: int = 1600) -> Optimum:
    """Of two models with these batch times and rates in rows/s. `states`: how many are kept, of both numbers.

    Raises RuntimeError where policy iteration does not end.
    """
    process = _Process(times_ns, rates, states)
    policy = process.start()
    for _ in range(_ROUNDS):
        average, value = process.evaluate(policy)
        gains = process.improve(average, value)
        now = np.take_along_axis(gains, policy[None], axis=0)[0]
        changed = np.where(gains.min(axis=0) < now - _TOLERANCE * max(1.0, abs(average)), gains.argmin(axis=0), policy)
        if (changed == policy).all():
            return Optimum(process.actions, policy, average / sum(process.rates) * process.unit)
        policy = changed
    raise RuntimeError(f"policy iteration did not end in {_ROUNDS} rounds")


class _Process:
    """Times are in units of the shortest batch."""

    def __init__(self, times_ns: Sequence[Sequence[int]], rates: Sequence[float], states: int) -> None:
        times = [padded(tuple(one))[0] for one in times_ns]
        self.unit = float(min(one[0] for one in times))
        self.rates = [rate * self.unit / 1e9 for rate in rates]
        #: The first waits for the next arrival, where no row does.
        self.actions = ((0, 0), *((model, rows) for model in (0, 1) for rows in range(1, len(times[model]) + 1)))
        self.times = [1 / sum(self.rates), *(times[model][rows - 1] / self.unit for model, rows in self.actions[1:])]
        self.shape = self._shape(states, [len(one) for one in times])
        #: By action and model: the chances of each number of rows after it, by the number before.
        self.moves = [
            [_chances(rate * time, last) for rate, last in zip(self.rates, self.shape, strict=True)]
            for time in self.times
        ]
        self.costs = [self._cost(number) for number in range(len(self.actions))]

    def _shape(self, states: int, largest: Sequence[int]) -> tuple[int, int]:
        """Of each number at least three full batches, and of both by what arrives during the longest batch."""
        wanted = [3 * rows + 3 * rate * max(self.times) for rows, rate in zip(largest, self.rates, strict=True)]
        shrink = min(1.0, (states / (wanted[0] * wanted[1])) ** 0.5)
        first, second = (max(2 * rows, round(one * shrink)) for rows, one in zip(largest, wanted, strict=True))
        return first, second

    def _cost(self, number: int) -> Floats:
        """Rows in the system, integrated. Those that arrive during a batch are there half of it."""
        first, second = np.ogrid[: self.shape[0] + 1, : self.shape[1] + 1]
        time = self.times[number]
        coming = sum(self.rates) * time**2 / 2 if number else 0.0
        cost: Floats = (first + second) * time + coming
        return cost

    def start(self) -> NDArray[np.int64]:
        """A policy to begin with: a batch of the model of which more rows wait."""
        number = {action: index for index, action in enumerate(self.actions)}
        most = [max(rows for model, rows in self.actions if model == one) for one in (0, 1)]
        policy = np.zeros((self.shape[0] + 1, self.shape[1] + 1), dtype=np.int64)
        for state in np.ndindex(policy.shape):
            if any(state):
                model = int(state[1] > state[0])
                policy[state] = number[model, min(state[model], most[model])]
        return policy

    def evaluate(self, policy: NDArray[np.int64]) -> tuple[float, Floats]:
        """The average cost per time, and the relative value of each state."""
        matrix = np.eye(policy.size)  # h - P h + g time = cost
        time, right = np.empty(policy.size), np.empty(policy.size)
        arrives = [rate / sum(self.rates) for rate in self.rates]
        for place, (state, number) in enumerate(np.ndenumerate(policy)):
            time[place], right[place] = self.times[number], self.costs[number][state]
            if not number:
                matrix[place, [policy.shape[1], 1]] -= arrives
                continue
            model, rows = self.actions[number]
            first, second = (state[one] - rows * (model == one) for one in (0, 1))
            matrix[place] -= np.outer(self.moves[number][0][first], self.moves[number][1][second]).ravel()
        matrix[:, 0] = time  # h(0, 0) = 0, so its column is free for g
        solution = np.linalg.solve(matrix, right)
        average = float(solution[0])
        solution[0] = 0
        return average, np.reshape(solution, policy.shape)

    def improve(self, average: float, value: Floats) -> Floats:
        """What each action costs in each state, given the relative values; infinite where it is impossible."""
        gains = np.full((len(self.actions), *value.shape), np.inf)
        arrives = [rate / sum(self.rates) for rate in self.rates]
        gains[0, 0, 0] = -average * self.times[0] + arrives[0] * value[1, 0] + arrives[1] * value[0, 1]
        for number, (model, rows) in enumerate(self.actions[1:], 1):
            after = self.moves[number][0] @ value @ self.moves[number][1].T
            cost = self.costs[number] - average * self.times[number]
            if model == 0:
                gains[number, rows:] = cost[rows:] + after[:-rows]
            else:
                gains[number, :, rows:] = cost[:, rows:] + after[:, :-rows]
        return gains


def _chances(mean: float, last: int) -> Floats:
    """[before, after] 0 to `last`, with a Poisson number of arrivals between. Beyond `last` a value is continued as a
    straight line through the last two states: that is what the last two columns are for.
    """
    count = np.arange(last + 1)
    logs = np.r_[0.0, np.cumsum(np.log(np.arange(1, last + 1)))]
    chances = np.exp(count * np.log(mean) - mean - logs)
    matrix = np.zeros((last + 1, last + 1))
    for before in range(last + 1):
        arrived = chances[: last + 1 - before]
        matrix[before, before:] = arrived
        over = max(0.0, 1 - arrived.sum())
        excess = max(0.0, mean - (arrived * count[: len(arrived)]).sum() - over * (last - before))
        matrix[before, last] += over + excess
        matrix[before, last - 1] -= excess
    return matrix
