"""The decision process of two workers, and nearly that of more (docs/theory/tables.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.scheduler.optimal import solver
from app.scheduler.optimal.time_left import TimeLeft

_STATES = 48  # waiting rows, at least
_SINGLE = 128  # states of the single worker whose values are the start

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Process:
    """The decision process. Times are in units of the shortest batch, so that the numbers stay near 1."""

    def __init__(
        self,
        together: Sequence[int],
        apart: Sequence[int],
        rate: float,
        beside: TimeLeft,
        *,
        workers: int = 2,
        states: int = 0,
    ) -> None:
        """`together`: nanoseconds by rows while all `workers` run, never falling; `apart`: the same while all but one
        do. `rate` in rows per second. `states`: the most waiting rows kept; 0: twice the largest batch, at least 48.

        Raises ValueError if no policy keeps up with the rate.
        """
        self.unit, self.beside = float(together[0]), beside
        self.times = np.asarray(together) / self.unit
        self.workers = workers
        #: By rows: the time until the next other worker ends, if they end at equal distances and have as much left in
        #: total as if they had just begun.
        self.turns = self.times * 2 / workers
        self.faster = self.times / (np.asarray(apart) / self.unit)
        speeds = np.arange(1, len(self.times) + 1) / self.times  # rows by time, of one worker
        self.fewer_serve_more = (speeds * self.faster).max() * (workers - 1) > speeds.max() * workers
        self.rate = rate * self.unit / 1e9
        self.largest = len(together)
        self.states = states or max(_STATES, 2 * self.largest)
        self._begin(together, apart, rate, workers)
        sizes = np.asarray(beside.sizes)
        self.size = np.repeat(sizes, beside.phases)  # by column, without the first
        # A column covers all sizes down to the next smaller one, and counts with their mean.
        self.counted = np.repeat((sizes + np.r_[0, sizes[:-1]] + 1) / 2, beside.phases)
        phase = np.tile(np.arange(1, beside.phases + 1), len(sizes))
        self.left = self.turns[self.size - 1] * phase / beside.phases
        self._starts()
        self._waits(phase)

    def _begin(self, together: Sequence[int], apart: Sequence[int], rate: float, workers: int) -> None:
        """Start values: those of one worker as fast as all together."""
        pooled = tuple(
            max(1, round(min(both / workers, one / (workers - 1)))) for both, one in zip(together, apart, strict=True)
        )
        best = solver.solve(pooled, rate, idling=False, states=max(_SINGLE, self.states, 2 * self.largest))
        inside, values = solver.values(pooled, best)
        self.average, self.pooled = inside, np.asarray(values) / self.unit
        self.peak = max(rows / time for rows, time in enumerate(pooled, 1)) * self.unit
        #: Beyond the last state: the value of one more row, and by how much it grows with each further row.
        self.slope = float(self.pooled[self.states] - self.pooled[self.states - 1])
        self.bend = 1 / (self.peak - self.rate)

    def _column(self, rows: Ints, left: Floats) -> tuple[Ints, Ints, Floats]:
        """The two columns between which the others are if the next one ends after `left`, and the weight of the second.

        `rows`: of their units; rounded up to a size that has columns.
        """
        phases, sizes = self.beside.phases, np.asarray(self.beside.sizes)
        longer = np.searchsorted(self.turns[sizes[:-1] - 1] + 1e-9, left)
        index = np.maximum(np.searchsorted(sizes, rows), longer)
        place = left / self.turns[sizes[index] - 1] * phases
        low = np.floor(place + 1e-9).astype(np.int64)
        share = np.clip(place - low, 0, 1)

        def column(phase: Ints) -> Ints:
            return np.where(phase > 0, index * phases + np.minimum(phase, phases), 0)

        return column(low), column(low + 1), share

    def _starts(self) -> None:
        """For each number of rows that start and each column: the time until a worker is free, and the columns then."""
        rows, column = (one.ravel() for one in np.mgrid[1 : self.largest + 1, 0 : len(self.size) + 1])
        left = np.r_[0.0, self.left][column]
        times, count = self.times[rows - 1], self.workers
        first = times < left - 1e-12  # the unit that starts ends first
        other = np.where(first, np.r_[1, self.size][column], rows)
        spent = np.minimum(times, left)
        # In total they have one more unit, and that time less.
        then = left + (times - count * spent) / (count * (count - 1) / 2)
        low, high, share = self._column(other, np.maximum(0.0, then))
        kinds, kind = np.unique(spent, return_inverse=True)
        self.spent = spent.reshape(self.largest, -1)
        arrivals = [self._arrivals(float(time)) for time in kinds]
        #: For each distinct time: the probabilities of arrivals [then, (time, before)].
        self.chances = np.concatenate([matrix.T for matrix, _ in arrivals], axis=1)
        self.low, self.high, self.share = low * len(kinds) + kind, high * len(kinds) + kind, share[:, None]
        self.first = first[:, None]
        #: A unit that starts becomes the other one, and may have fewer rows than its column counts with.
        self.over = np.where(first, 0.0, np.r_[0.0, self.counted][low] - rows)[:, None]
        self.extra = np.stack([extra for _, extra in arrivals])[kind].reshape(self.largest, len(self.size) + 1, -1)

    def _arrivals(self, time: float) -> tuple[Floats, Floats]:
        """Transition probabilities of the number of waiting rows in this time, and the value beyond the last state."""
        last = self.states
        if not time:
            return np.eye(last + 1), np.zeros(last + 1)
        chances = solver.poisson(np.array([self.rate * time]))[0]
        beyond = np.arange(1, len(chances))
        worth = self.slope * beyond + self.bend * beyond * (beyond + 1) / 2
        chances = np.r_[chances, np.zeros(last + 1)]  # of arrivals
        after = np.arange(last + 1) - np.arange(last + 1)[:, None]  # [before, then]
        matrix = np.where(after >= 0, chances[after], 0.0)
        matrix[:, -1] += 1 - matrix.sum(axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(chances[1:], len(worth))  # by how many places are left
        return matrix, windows[last::-1] @ worth

    def _waits(self, phase: Ints) -> None:
        """For waiting, by column: the probability that another worker ends before a row arrives, the columns in either
        case, the expected time, and what each row of the other unit gains by running alone."""
        count = len(self.size) + 1
        self.ends, self.waited, self.gain = np.zeros(count), np.zeros(count), np.zeros(count)
        self.ended = np.zeros(count, dtype=np.int64)
        self.meets = np.zeros((count, count))
        self.meets[0, 0], self.waited[0] = 1.0, 1 / self.rate
        for column in range(1, count):
            rows = self.size[column - 1]
            mean = self.rate * self.times[rows - 1] / self.beside.phases / self.faster[rows - 1]
            arrives = -np.expm1(-mean)
            # How far into the phase a row arrives, on average; 0 if none does.
            passed = (arrives - mean * np.exp(-mean)) / mean
            alive = 1.0
            last = phase[column - 1] * (self.workers - 2) // self.workers  # where the first of several has ended
            for left in range(phase[column - 1], last, -1):
                at = column - phase[column - 1] + left
                self.meets[at, column] += alive * (arrives - passed)
                self.meets[at - 1 if left > 1 else 0, column] += alive * passed
                alive *= 1 - arrives
            self.ends[column] = alive
            self.ended[column] = column - phase[column - 1] + last if last else 0
            self.waited[column] = (1 - alive) / self.rate
            self.gain[column] = (self.faster[rows - 1] - 1) * self.waited[column]

    def start(self) -> Floats:
        """Start values [measure, column, waiting]: the time that the other has left counts as waiting rows."""
        others = np.r_[0.0, self.left] * self.peak * (self.workers - 1) / 2
        value = np.interp(np.arange(self.states + 1) + others[:, None], np.arange(len(self.pooled)), self.pooled)
        return np.stack([value, np.zeros_like(value), np.zeros_like(value)])

    def allowed(self, idling: bool) -> NDArray[np.bool_]:
        """Which action [rows, column, waiting] is allowed. With a full batch a free worker does not wait for rows;
        with `idling` False a worker waits only while another runs.

        In the last state, which is not part of any table, there is no choice: values beyond it are too inaccurate, and
        the choice would alternate for ever. There a worker waits for another only if fewer workers at once serve more.
        """
        rows, column, waiting = np.ogrid[: self.largest + 1, : len(self.size) + 1, : self.states + 1]
        waits = (column > 0) | (waiting < (self.largest if idling else 1))
        at_end = (rows == 0) == ((column > 0) & self.fewer_serve_more)
        allowed: NDArray[np.bool_] = (rows <= waiting) & np.where(waiting < self.states, (rows > 0) | waits, at_end)
        return allowed

    def doubt(self, errors: Floats) -> Floats:
        """By action [rows, column, waiting]: the standard error of its cost.

        A batch that takes longer by dt delays its own rows and those that wait. To wait is as doubtful as to run all.
        """
        rows, waiting = np.ogrid[: self.largest + 1, : self.states + 1]
        own = np.r_[0.0, errors * self.times]
        found: Floats = own[np.where(rows, rows, np.minimum(waiting, self.largest))] * waiting
        return found[:, None]

    def at_once(self) -> tuple[Floats, Floats]:
        """What each action [rows, column, waiting] costs and takes until the next decision, 0 if it is impossible."""
        waiting = np.arange(self.states + 1)
        cost = np.zeros((self.largest + 1, len(self.size) + 1, self.states + 1))
        time = np.zeros_like(cost)
        spared = (self.workers - 1) * np.r_[0.0, self.counted] * self.gain
        cost[0], time[0] = waiting * self.waited[:, None] - spared[:, None], self.waited[:, None]
        cost[0, :, -1] += (self.slope + self.bend) * self.meets.sum(axis=0)
        for rows, spent in enumerate(self.spent[:, :, None], 1):
            left = waiting[: self.states + 1 - rows]
            own = rows * self.times[rows - 1]
            cost[rows, :, rows:] = own + left * spent + self.rate * spent**2 / 2 + self.extra[rows - 1][:, : len(left)]
            time[rows, :, rows:] = spent
        return cost, time
