"""The least mean latency of any policy for a model of two stages, and the exact mean of a given policy.

One device that runs one unit at a time, Poisson arrivals, batch times T0(b) and T1(b) up to a small largest batch. The
semi-Markov decision process has two dimensions:

    state     (waiting, standing): rows before the first stage, rows between the two; seen whenever the device is free
    action    wait for the next arrival; run b of those that wait; run b of those between
    time      1 / rate, T0(b) or T1(b)
    cost      rows in the system, integrated over that time, divided by the rate: on average the mean latency

Which rows travelled together does not matter: rows of any batches may merge, and any of them may go first, since only
their number is counted. Solved as `solver` does, by policy iteration with one linear system for each policy. `standing`
is bounded, because rows between stages take memory; a bound of twice the largest batch loses nothing that can be seen.
Beyond the last number waiting the value continues as a quadratic: there those between are served first, then the
best-throughput size over and over, first stage and second in the parts that take least time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from app.scheduler.optimal.solver import poisson

_ROUNDS = 100  # policy iteration ends after about ten
_TOLERANCE = 1e-10  # of the average cost: an action must gain more to replace another, or ties would alternate

LARGEST = 8  # rows: with more the linear systems take minutes

Floats = NDArray[np.float64]


class Action(NamedTuple):
    """Run `rows` rows at `stage` as a batch of `size`; 0 rows: wait for the next arrival."""

    stage: int
    rows: int
    size: int


WAIT = Action(0, 0, 0)

#: What a policy does with so many rows waiting and standing.
Rule = Callable[[int, int], Action]


@dataclass(frozen=True, slots=True)
class Solution:
    """A stationary policy and its mean latency. `table[waiting][standing]`: what it does."""

    table: tuple[tuple[Action, ...], ...]
    rate: float  # rows per second
    mean_ns: float


def solve(first_ns: Sequence[int], second_ns: Sequence[int], rate: float, *, states: int = 64,
          standing: int = 0) -> Solution:  # fmt: skip
    """The policy with the least mean latency.

    `states`: the largest number waiting that is kept; `standing`: the most rows between the stages, 0 for twice the
    largest batch. Raises ValueError for more than 8 rows, or where no policy keeps up with the rate.
    """
    process = _Process(first_ns, second_ns, rate, states, standing)
    chosen = process.start()
    for _ in range(_ROUNDS):
        average, value = process.evaluate(chosen)
        gains = process.improve(average, value)
        numbers = np.array([0, *process.fastest])
        now = np.take_along_axis(gains, numbers.searchsorted(chosen)[None], axis=0)[0]
        keep = gains.min(axis=0) >= now - _TOLERANCE * max(1.0, abs(average))
        changed = np.where(keep, chosen, numbers[gains.argmin(axis=0)])
        if (changed == chosen).all():
            return process.solution(chosen, average)
        chosen = changed
    raise RuntimeError(f"policy iteration did not end in {_ROUNDS} rounds")  # never seen; it must end


def evaluate(first_ns: Sequence[int], second_ns: Sequence[int], rate: float, rule: Rule, *, states: int = 64,
             standing: int = 0) -> Solution:  # fmt: skip
    """The mean latency of the policy that does `rule(waiting, standing)`.

    Raises ValueError as `solve`, and for a rule that asks for more rows than there are, or never serves some of them.
    """
    process = _Process(first_ns, second_ns, rate, states, standing)
    chosen = process.follow(rule)
    average, _ = process.evaluate(chosen)
    return process.solution(chosen, average)


class _Process:
    """The decision process, in units of what one row takes. `times[a]`, `stage[a]`, `rows[a]`: of each action."""

    def __init__(
        self, first_ns: Sequence[int], second_ns: Sequence[int], rate: float, states: int, standing: int
    ) -> None:
        largest = len(first_ns)
        if len(second_ns) != largest or not 1 <= largest <= LARGEST or min(*first_ns, *second_ns) <= 0:
            raise ValueError(
                f"stages: expected times above 0 of 1 to {LARGEST} rows, as many of both, "
                f"got {list(first_ns)} and {list(second_ns)}"
            )
        self.largest, self.states = largest, max(states, 2 * largest)
        self.standing = standing or 2 * largest
        if self.standing < largest:
            raise ValueError(f"standing: expected at least the largest batch, {largest}, got {standing}")
        self.unit = float(first_ns[0] + second_ns[0])
        self.rate = rate * self.unit / 1e9
        # Action 0 waits; then rows x size of the first stage, and of the second: a batch may be padded.
        pairs = [(rows, size) for rows in range(1, largest + 1) for size in range(rows, largest + 1)]
        self.actions = [WAIT, *(Action(stage, *pair) for stage in (0, 1) for pair in pairs)]
        self.times = np.array(
            [1 / self.rate, *(t[size - 1] / self.unit for t in (first_ns, second_ns) for _, size in pairs)]
        )
        self.number = {action: index for index, action in enumerate(self.actions)}
        #: The numbers of those that a best policy needs: each rows at the size that is fastest.
        self.fastest = [self.number[self._fastest(stage, rows)] for stage in (0, 1) for rows in range(1, largest + 1)]
        self.arrivals = poisson(self.rate * self.times[1:])
        self.beyond = self.arrivals.shape[1]  # rows waiting past the last that an action can lead to
        self.tail = _Tail(self._shortest(0), self._parts(), self.rate, rate)

    def _shortest(self, stage: int) -> Floats:
        """By rows: the time of one unit of them, padded where that is faster."""
        return np.array(
            [
                min(self.times[self.number[Action(stage, rows, size)]] for size in range(rows, self.largest + 1))
                for rows in range(1, self.largest + 1)
            ]
        )

    def _parts(self) -> tuple[Floats, Floats]:
        """By rows between the stages, from 0: the least time of the second stage for all, and its rows x time."""
        units = self._shortest(1)
        total, area = np.zeros(self.standing + 1), np.zeros(self.standing + 1)
        for rows in range(1, self.standing + 1):
            tried = [units[part - 1] + total[rows - part] for part in range(1, min(rows, self.largest) + 1)]
            part = int(np.argmin(tried)) + 1
            total[rows] = tried[part - 1]
            area[rows] = rows * units[part - 1] + area[rows - part]
        return total, area

    def start(self) -> NDArray[np.int64]:
        """A policy to begin with: those between the stages first, as many as can run; never idle."""
        return self.follow(
            lambda waiting, standing: self._fastest(1, standing) if standing else self._fastest(0, waiting)
        )

    def _fastest(self, stage: int, rows: int) -> Action:
        rows = min(rows, self.largest)
        tried = [Action(stage, rows, size) for size in range(rows, self.largest + 1)]
        return min(tried, key=lambda action: self.times[self.number[action]]) if rows else WAIT

    def follow(self, rule: Rule) -> NDArray[np.int64]:
        """The number of the action in each state [waiting, standing]."""
        chosen = np.zeros((self.states + 1, self.standing + 1), dtype=np.int64)
        for waiting, standing in np.ndindex(chosen.shape):
            action = rule(waiting, standing)
            if not action.rows:
                action = WAIT
            most = (min(waiting, self.standing - standing), standing)[action.stage]
            if action.rows > most or action not in self.number:
                raise ValueError(f"rule: expected at most {most} rows in ({waiting}, {standing}), got {action}")
            chosen[waiting, standing] = self.number[action]
        return chosen

    def evaluate(self, chosen: NDArray[np.int64]) -> tuple[float, Floats]:
        """The average cost per time, and the value of each state [waiting, standing] and beyond the last waiting."""
        width = self.standing + 1
        count = (self.states + 1) * width
        constant, factor = self.tail.extend(self.states, self.beyond, width)
        matrix, time, right = np.eye(count), np.empty(count), np.empty(count)
        for (waiting, standing), number in np.ndenumerate(chosen):
            state = waiting * width + standing
            action, spent = self.actions[number], self.times[number]
            time[state] = spent
            right[state] = (waiting + standing) * spent + self._coming(int(number))
            if number == 0:
                chances, low, after = np.ones(1), waiting + 1, standing
            else:
                chances = self.arrivals[number - 1]
                low = waiting - action.rows * (action.stage == 0)
                after = standing + (action.rows if action.stage == 0 else -action.rows)
            inside = chances[: max(0, self.states + 1 - low)]
            cells = np.arange(low, low + len(inside)) * width + after
            matrix[state, cells] -= inside
            outside = chances[len(inside) :]
            if len(outside):
                first = low + len(inside) - self.states - 1
                matrix[state, self.states * width + after] -= outside.sum()
                right[state] += outside @ constant[first : first + len(outside), after]
                time[state] -= outside @ factor[first : first + len(outside), after]
        matrix[:, 0] = time  # the value of (0, 0) is 0, so its column is free for the average
        try:
            solution = np.linalg.solve(matrix, right)
        except np.linalg.LinAlgError:
            raise ValueError("rule: expected one that serves every row in the end") from None
        average = float(solution[0])
        solution[0] = 0
        value = solution.reshape(-1, width)
        return average, np.concatenate([value, value[-1] + constant + factor * average])

    def _coming(self, number: int) -> float:
        """Rows x time of those that arrive during an action: they are there half of it."""
        return float(self.rate * self.times[number] ** 2 / 2) if number else 0.0

    def improve(self, average: float, value: Floats) -> Floats:
        """What waiting and each of `fastest` cost in each state [action, waiting, standing]; infinite if impossible."""
        waiting, standing = np.ogrid[: self.states + 1, : self.standing + 1]
        gains = np.full((1 + 2 * self.largest, self.states + 1, self.standing + 1), np.inf)
        # With a full batch there is nothing to wait for; see `solver`.
        idle = (waiting < self.largest) & (standing < self.largest)
        waits = (waiting + standing - average) * self.times[0] + value[1 : self.states + 2]
        gains[0] = np.where(idle, waits, np.inf)
        windows = sliding_window_view(value, self.beyond, axis=0)  # [waiting, standing, arrivals]
        for place, number in enumerate(self.fastest, 1):
            action = self.actions[number]
            after = windows[: self.states + 1] @ self.arrivals[number - 1]
            cost = (waiting + standing - average) * self.times[number] + self._coming(number)
            rows = action.rows
            if action.stage == 0:
                gains[place, rows:, : self.standing + 1 - rows] = (
                    cost[rows:, : self.standing + 1 - rows] + after[: self.states + 1 - rows, rows:]
                )
            else:
                gains[place, :, rows:] = cost[:, rows:] + after[:, : self.standing + 1 - rows]
        return gains

    def solution(self, chosen: NDArray[np.int64], average: float) -> Solution:
        table = tuple(tuple(self.actions[number] for number in row) for row in chosen.tolist())
        return Solution(table, self.rate * 1e9 / self.unit, average / self.rate * self.unit)


class _Tail:
    """The value beyond the last number waiting, where `size` rows are run through both stages over and over.

    With T the time of such a round and A the rows that arrive during it, h(n, 0) = a n^2 + b n + const (see `solver`).
    Rows between are served before: during D(s), in which B arrive, h(n, s) = n D(s) - g D(s) + E h(n + B, 0) + const.
    """

    def __init__(self, first: Floats, parts: tuple[Floats, Floats], rate: float, asked: float) -> None:
        rows = np.arange(1, len(first) + 1)
        total, area = parts
        rounds = first + total[1 : len(first) + 1]
        self.size = int((rows / rounds).argmax()) + 1
        self.time = float(rounds[self.size - 1])
        self.drift = self.size - rate * self.time  # rows fewer after each round
        if self.drift <= 1e-9 * self.size:
            peak = asked / rate * self.size / self.time
            raise ValueError(f"rate: expected less than {peak:.6g} rows/s, the most that can be served, got {asked:g}")
        self.rate, self.serving = rate, total
        #: Of a round in (0, 0): its rows x time, less what those have that leave before its end.
        self.cost = rate * self.time**2 / 2 - (self.size * total[self.size] - area[self.size])

    def extend(self, last: int, steps: int, width: int) -> tuple[Floats, Floats]:
        """h(last + k, s) - h(last, s) for k = 1..steps as (constant, factor of g), [k, s]."""
        k = np.arange(1, steps + 1, dtype=np.float64)[:, None]
        serving = self.serving[None, :width]
        square = self.time / (2 * self.drift)
        line = (self.cost + square * (self.rate * self.time + self.drift**2)) / self.drift
        constant = k * serving + square * ((last + k) ** 2 - last**2 + 2 * k * self.rate * serving) + k * line
        return constant, np.broadcast_to(-k * self.time / self.drift, constant.shape)
