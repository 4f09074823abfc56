"""The exact control table for the measured curve: the default.

For each load there is a table, solved off the loop, that says how many of the rows that wait to run now (see `control`
and `optimal`). The queue is the table's state; the rate monitor's window names the table. A burst is seen before its
window ends: when many rows wait, the rate at which they came is known from them alone, and the busier table of the two
is taken. (One that believes in a low rate cuts a long queue into small batches, which then never gets shorter.)

Under the objective `latency` no usable worker idles while rows wait; under others rows may be held for company, until

    more come, and the table says run; or
    the first row would miss its deadline; or
    it has waited several times what the wait was expected to last.

Before there is a table it does as `no_wait` does. A program of several stages has the table of the whole at its first
stage, and between stages what `boundary` says; of rows that join others ahead of them no more begin than fit. Cells are
served as by `late`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import boundary
from app.scheduler.policies.base import BasePolicy, Cut, Facts, Hold, KeyView, go, held
from app.scheduler.policies.late import steps_aside
from app.scheduler.types import Formed

_CROWD = 8  # rows that wait: fewer say little of the rate
#: Of a Poisson count. Fewer take chance for a burst, which `python -m loadtest.bench.policies` shows for a CNN at high
#: load; more see a step later, which `python -m loadtest.papers.ebird` shows for one worker.
_DEVIATIONS = 3.0


class Adaptive(BasePolicy):
    """Runs what the control table says, at the size that it says."""

    name = "adaptive"
    uses_tables = True
    sees_stages = True
    pushes_steps = True

    def goes_on(self, facts: Facts, stage: int, rows: int) -> bool:
        return boundary.goes_on(facts, stage, rows)

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        around = view.around
        if around is not None:
            if around.cell:
                return Hold(None) if steps_aside(view) else go(view, view.ready)
            if around.stage:
                return boundary.decide(view, around, now)
            if 0 < around.ahead < view.full:
                return go(view, min(view.ready, view.full - around.ahead))
        control = view.facts.control
        level = -1 if control is None else _level(view, control, now)
        if control is None or level < 0:
            return _cut(min(view.ready, view.limit), view, idle, Formed.IDLE)
        free = min(len(idle), view.free, control.workers)
        planned = control.serve(level, -(-view.ready // free))
        if planned:
            rows = min(planned, view.limit)
            return _cut(rows, view, idle, Formed.IDLE if rows == view.ready else Formed.TABLE)
        ended = held(view, round(control.hold_ns[level] * view.facts.scale), now)
        return ended if isinstance(ended, Hold) else _cut(min(view.ready, view.limit), view, idle, ended)


def _level(view: KeyView, control: ControlTables, now: int) -> int:
    """The table for the window's rate, or for the rate of those that wait where that is higher beyond chance."""
    facts, span = view.facts, now - view.oldest
    if view.ready >= _CROWD and span > 0:
        expected = facts.rate * span / 1e9
        if view.ready - 1 > expected + _DEVIATIONS * sqrt(expected):
            return max(facts.level, control.level(view.ready * 1e9 / span, facts.scale))
    return facts.level


def _cut(rows: int, view: KeyView, idle: Sequence[int], reason: Formed) -> Cut:
    """Run `rows` at the size that is fastest for them, where a worker that is idle takes it."""
    control = view.facts.control
    size = rows
    if control is not None and rows <= len(control.sizes):
        sizes = control.alone if view.running == 1 and control.alone else control.sizes
        size = sizes[rows - 1]
        if size > idle[0]:
            size = rows
    return Cut(rows, size, Formed.FULL if rows == view.full else reason)
