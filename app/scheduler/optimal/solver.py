"""Solves for the batching policy with the least mean latency, for one worker, Poisson arrivals and known batch times.

A semi-Markov decision process, solved by policy iteration (docs/theory/tables.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from app.scheduler.estimates.parts import padded

_ROUNDS = 100  # policy iteration ends after about ten
_IDLE_ROUNDS = 10  # rounds without a gain: only ties decided by rounding still change, seen from 256 rows on
_TOLERANCE = 1e-10  # share of the average cost that an action must gain to replace another, or ties would alternate

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Optimum:
    """A stationary policy and its long-run averages. `table[n]`: rows to run if n wait, 0 for wait."""

    table: tuple[int, ...]
    sizes: tuple[int, ...]  # sizes[b - 1]: the size at which b rows are run
    rate: float  # rows per second
    mean_ns: float  # latency
    tail: int  # rows to run if more wait than the table has entries for


def solve(
    batch_ns: Sequence[int],
    rate: float,
    *,
    idling: bool = True,
    states: int = 256,
    start: Sequence[int] = (),
) -> Optimum:
    """The policy with the least mean latency.

    `rate` in rows per second. With `idling` False the device is never idle while rows wait. `states`: the largest
    number of waiting rows kept, at least twice the largest batch. `start`: a table to begin with, such as that of
    another rate: only faster.

    Raises ValueError if no policy keeps up with the rate.
    """
    process = OneWorker(batch_ns, rate, states)
    allowed = process.allowed(idling)
    every = np.minimum(np.arange(process.states + 1), process.tail_size)
    table = np.asarray(start, dtype=np.int64) if len(start) == len(every) else every
    table[-1] = process.tail_size
    cost = process.latency_cost()
    least, idle_rounds, lowest = np.inf, 0, table
    for _ in range(_ROUNDS):
        try:
            average, value = process.evaluate(table, cost)
        except np.linalg.LinAlgError:  # the table given does not keep up in some states
            table = every
            average, value = process.evaluate(table, cost)
        gains = process.improve(value, average, cost)
        gains[~allowed] = np.inf
        best = gains.argmin(axis=1)
        rows = np.arange(len(table))
        keep = gains[rows, best] >= gains[rows, table] - _TOLERANCE * max(1.0, abs(average)) * process.shortest
        changed = np.where(keep, table, best)
        idle_rounds = 0 if average < least - _TOLERANCE * abs(average) else idle_rounds + 1
        if average < least:
            least, lowest = average, table
        if (changed == table).all():
            return process.optimum(table)
        if idle_rounds == _IDLE_ROUNDS:
            break
        table = changed
    return process.optimum(lowest)


def values(batch_ns: Sequence[int], best: Optimum) -> tuple[float, tuple[float, ...]]:
    """The mean number of rows in the system, and the relative value, in rows x ns, of each number of waiting rows.

    `best`: what `solve` found for these batch times. The relative value is the total cost above the average when
    starting with so many rows instead of none.
    """
    process = OneWorker(batch_ns, best.rate, len(best.table) - 1)
    average, value = process.evaluate(np.asarray(best.table, dtype=np.int64), process.latency_cost())
    return best.rate * average / 1e9, tuple((value * process.rate).tolist())


class _Tail:
    """The relative value beyond the last state, where batches of `size` rows are always run.

    h(n) = c1 n + c0 - g T + E h(n - size + A), with A arrivals during T, is solved by h(n) = a n^2 + b n + const:
        a = c1 / (2 d),   b = (c0 - g T + a E(A - size)^2) / d,   d = size - rate x T
    and by terms that die out geometrically with n. So h(S + k) = h(S) + a ((S + k)^2 - S^2) + b k.
    """

    def __init__(self, size: int, time: float, rate: float) -> None:
        self.size = size
        self.time = time
        self.drift = size - rate * time  # rows fewer after each batch
        self.spread = rate * time + self.drift**2  # E(A - size)^2

    def extend(self, last: int, steps: int, cost: Floats) -> tuple[Floats, Floats]:
        """h(last + k) - h(last) for k = 1..steps as (constant, factor of g), given `cost` (c0, c1)."""
        k = np.arange(1, steps + 1, dtype=np.float64)
        square = cost[1] / (2 * self.drift)
        line = (cost[0] + square * self.spread) / self.drift
        return ((last + k) ** 2 - last**2) * square + k * line, -k * self.time / self.drift


class OneWorker:
    """The decision process. Times are in units of the shortest batch, so that the numbers stay near 1."""

    def __init__(self, batch_ns: Sequence[int], rate: float, states: int) -> None:
        if not batch_ns or min(batch_ns) <= 0:
            raise ValueError(f"batch_ns: expected times above 0, got {list(batch_ns)!r}")
        if rate <= 0:
            raise ValueError(f"rate: expected rows per second above 0, got {rate!r}")
        times, self.sizes = padded(tuple(batch_ns))
        self.unit = float(times[0])  # nanoseconds
        self.times = np.asarray(times) / self.unit
        self.rate = rate * self.unit / 1e9
        self.states = states
        self.largest = len(times)
        if states < self.largest:
            raise ValueError(f"states: expected at least the largest batch, {self.largest}, got {states}")
        self.tail_size = int((np.arange(1, self.largest + 1) / self.times).argmax()) + 1
        tail = _Tail(self.tail_size, self.times[self.tail_size - 1], self.rate)
        if tail.drift <= 1e-9 * tail.size:
            peak = tail.size / tail.time * 1e9 / self.unit
            raise ValueError(f"rate: expected less than {peak:.6g} rows/s, the most that can be served, got {rate:g}")
        self.tail = tail
        self.shortest = min(1 / self.rate, float(self.times.min()))
        self.arrivals = poisson(self.rate * self.times)
        self.beyond = self.arrivals.shape[1]  # states beyond the last that a batch can lead to
        changes = np.zeros((self.largest + 1, states + states + 1 + self.beyond))
        changes[0, states + 1] = 1.0  # to wait is to wait for one row
        changes[1:, states : states + self.beyond] = self.arrivals
        #: By action and `states` less the rows that it leaves: the probability of each number of waiting rows next.
        self.leads_to = sliding_window_view(changes, states + 1 + self.beyond, axis=1)

    def allowed(self, idling: bool) -> NDArray[np.bool_]:
        """Which action is allowed in which state. With a full batch waiting is not allowed.

        Otherwise a policy during iteration might never serve some states. Then it has no single average, and the linear
        system is singular or its solution meaningless.
        """
        n, b = np.ogrid[: self.states + 1, : self.largest + 1]
        allowed: NDArray[np.bool_] = (b <= n) & ((b > 0) | (n < self.largest))
        if not idling:
            allowed[1:, 0] = False
        return allowed

    # costs: cost[0, a] + cost[1, a] x n is what action a costs in state n

    def latency_cost(self) -> Floats:
        """Rows in the system, integrated, over the rate. Rows that arrive during a batch are there for half of it."""
        cost = np.empty((2, self.largest + 1))
        cost[1] = np.r_[1 / self.rate, self.times] / self.rate
        cost[0] = np.r_[0.0, self.times**2 / 2]
        return cost * self.unit

    # one policy

    def evaluate(self, table: NDArray[np.int64], cost: Floats) -> tuple[float, Floats]:
        """Average cost per unit of time, and relative value of each state."""
        n = np.arange(self.states + 1)
        constant, factor = self.tail.extend(self.states, self.beyond, cost[:, self.tail_size])
        time = np.r_[1 / self.rate, self.times][table]
        right = cost[0, table] + n * cost[1, table]
        leads_to = self.leads_to[table, self.states - (n - table)]
        inside, outside = leads_to[:, : self.states + 1], leads_to[:, self.states + 1 :]
        right += outside @ constant
        time -= outside @ factor
        matrix = np.eye(self.states + 1) - inside  # h - P h + g time = cost
        matrix[:, -1] -= outside.sum(axis=1)
        matrix[:, 0] = time  # h(0) = 0, so its column is free for g
        solution = np.linalg.solve(matrix, right)
        average, last = float(solution[0]), solution[-1]
        return average, np.r_[0.0, solution[1:], last + constant + factor * average]

    def improve(self, value: Floats, average: float, cost: Floats) -> Floats:
        """The cost of each action in each state, by the relative values; without meaning where too few rows wait."""
        n, b = np.arange(self.states + 1)[:, None], np.arange(1, self.largest + 1)
        gains = np.empty((self.states + 1, self.largest + 1))
        gains[:, 0] = cost[0, 0] + n[:, 0] * cost[1, 0] - average / self.rate + value[1 : self.states + 2]
        after = sliding_window_view(value, self.beyond)[: self.states + 1] @ self.arrivals.T  # [rows left, b - 1]
        gains[:, 1:] = cost[0, 1:] + n * cost[1, 1:] - average * self.times + after[np.maximum(n - b, 0), b - 1]
        return gains

    def optimum(self, table: NDArray[np.int64]) -> Optimum:
        """The policy with its mean latency."""
        return Optimum(
            table=tuple(table.tolist()),
            sizes=self.sizes,
            rate=self.rate * 1e9 / self.unit,
            mean_ns=self.evaluate(table, self.latency_cost())[0],
            tail=self.tail_size,
        )


def poisson(means: Floats) -> Floats:
    """Probabilities of 0, 1, 2, ... arrivals, one row for each mean, cut off where about 1e-15 is left."""
    last = int(np.ceil(means.max() + 9 * np.sqrt(means.max()) + 25))
    logs = np.r_[0.0, np.cumsum(np.log(np.arange(1, last + 1)))]
    chances: Floats = np.exp(np.arange(last + 1) * np.log(means)[:, None] - means[:, None] - logs)
    chances /= chances.sum(axis=1, keepdims=True)
    return chances
