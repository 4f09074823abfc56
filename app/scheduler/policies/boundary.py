"""What `adaptive` does between two stages: go on, wait for rows that come behind, or run fewer rows first.

Each choice is judged by what it costs if from then on the program is served as by its table, unsliced (one step of
policy iteration, or a rollout): rows in the system, integrated over time until the device is free again, plus the
table's own value of the rows that wait then, less the average cost of the time that has passed.

    go on    the b rows here run to the end; those that have begun behind them after that
    wait     m of those behind run to this boundary, as many as fit; then b + m rows go on together
    split    parts of the b rows run to the end one after the other

Going on is what the unsliced model does. Another choice is taken only where it costs less, so that with Poisson
arrivals, exact batch times and one unit at a time slicing a model makes no mean latency worse. That is exact for one
such choice in the course of things; that further ones follow can only make it better. Values are of the nearest load
that has a table; how many rows come during a run is weighed exactly while few are expected, else by two points.

Where times by length are known, runs take those of their longest row, parts of a batch included, and only rows about as
long as those here are waited for at the first stage. The values stay those of the table, for one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies.base import Around, Cut, Facts, Hold, KeyView, go
from app.scheduler.types import Formed

_FEW = 4.0  # rows expected to come: below it each number is weighed by its chance
_TERMS = 16  # of a Poisson mean of at most `_FEW`; the chance of more is below 1e-5
_GAIN = 1e-6  # of a cost: what is gained beyond rounding

#: A run of the device: how long it takes, and how many rows end with it.
Run = tuple[float, int]


def decide(view: KeyView, around: Around, now: int) -> Cut | Hold:
    """`view` is of a stage behind the first that is no cell."""
    rows = min(view.ready, view.limit)
    facts = view.facts
    alone = view.free == 1 and view.running == 1  # else other units run meanwhile, and nothing here is known
    stage, behind = around.nearest
    if not (alone and facts.remaining and facts.whole is not None and facts.level >= 0) or around.ahead:
        return go(view, rows)
    here, source, together_here = _times(facts, around)
    queue = _Queue(facts.whole, facts.level, behind if stage == 0 else 0)
    begun = [(source[min(behind, view.full) - 1], behind)] if stage > 0 else []
    on: list[Run] = [(here[rows - 1], rows), *begun]
    best, least = 0, queue.cost(on) * (1 - _GAIN)
    joining = min(around.fitting if facts.lengths and not stage else behind, view.full - rows)
    if joining > 0:
        wait = source[joining - 1] - together_here[joining - 1]
        together: list[Run] = [(wait + together_here[rows + joining - 1], rows + joining)]
        cost = queue.cost(together, joining if stage == 0 else 0)
        if now + wait <= view.due and cost < least and (stage == 0 or joining == behind):
            best, least = -1, cost
    size = rows
    while size > 1:
        size = (size + 1) // 2
        parts = _parts(rows, size, here)
        if _total(parts) < rows * here[rows - 1] and (cost := queue.cost([*parts, *begun])) < least:
            best, least = size, cost
    if best < 0:
        return Hold(None)
    return go(view, best or rows, Formed.TABLE if best else Formed.IDLE)


def goes_on(facts: Facts, stage: int, rows: int) -> bool:
    """Whether a batch goes on to `stage` as it is, where nothing waits: a split gains nothing."""
    if rows == 1 or facts.whole is None or facts.level < 0 or not facts.remaining:
        return True
    here = facts.remaining[stage]
    least = rows * here[rows - 1]
    size = rows
    while size > 1:
        size = (size + 1) // 2
        if _total(_parts(rows, size, here)) < least:
            return False  # it may gain: `decide` weighs what comes meanwhile
    return True


def _times(facts: Facts, around: Around) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """By size, from here to the end: of the rows here; from their own stage of those behind; from here of both."""
    nearest = max(around.nearest[0], 0)
    if not facts.lengths:
        here = facts.remaining[around.stage]
        return here, facts.remaining[nearest], here
    lengths = facts.lengths[around.stage]
    behind = around.longest_behind or around.longest  # at the first stage, those that fit are no longer
    both = lengths.at(max(around.longest, behind)).times
    return lengths.at(around.longest).times, facts.lengths[nearest].at(behind).times, both


class _Queue:
    """What follows when the device is free, as the table of one load values it."""

    __slots__ = ("_inside", "_rate", "_values", "_waiting")

    def __init__(self, control: ControlTables, level: int, waiting: int) -> None:
        self._rate = control.loads[level] * control.peak / 1e9  # rows per nanosecond
        self._inside = control.inside[level]
        self._values = control.values[level]
        self._waiting = waiting

    def cost(self, runs: Sequence[Run], begun: int = 0) -> float:
        """Of these runs, one after the other, in rows x ns; `begun` of the rows that wait are part of them."""
        left = self._waiting - begun
        present = left + sum(rows for _, rows in runs)
        total = over = 0.0
        for time, rows in runs:
            total += present * time
            over += time
            present -= rows
        come = self._rate * over
        return total + come * over / 2 - self._inside * over + self._expected(left, come)

    def _expected(self, left: int, come: float) -> float:
        """The mean value of `left` rows and a Poisson number of others, `come` on average."""
        if come > _FEW:
            spread = sqrt(come)
            return (self._value(left + come - spread) + self._value(left + come + spread)) / 2
        chance, mean = exp(-come), 0.0
        for more in range(_TERMS):
            mean += chance * self._value(left + more)
            chance *= come / (more + 1)
        return mean

    def _value(self, waiting: float) -> float:
        """On the line between whole numbers, and beyond the last state on that through the last two."""
        values = self._values
        low = min(int(waiting), len(values) - 2)
        return values[low] + (waiting - low) * (values[low + 1] - values[low])


def _parts(rows: int, size: int, times: Sequence[float]) -> list[Run]:
    """Parts of `size`, and what is left, one after the other."""
    full, rest = divmod(rows, size)
    parts: list[Run] = [(times[size - 1], size)] * full
    return [*parts, (times[rest - 1], rest)] if rest else parts


def _total(runs: Sequence[Run]) -> float:
    """Rows x ns until the last has ended."""
    total = over = 0.0
    for time, rows in runs:
        over += time
        total += rows * over
    return total
