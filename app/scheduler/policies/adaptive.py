"""The default policy: looks up the exact control table for the measured curve of batch times.

For each load there is a table, solved off the event loop (`optimal`): it maps the number of waiting rows to the number
of rows to run now. The arrival rate of the last windows chooses the table. A burst shows before a window ends: if many
rows wait, their arrivals alone give a rate, and if the table for the known rate would run only some of them, the busier
table of the two is used. (A table for a low rate would cut a long queue into small batches, and the queue would never
get shorter.)

With several workers the state also contains the time that the others have left. A free worker may wait for them, so
that the workers start in turn, with larger batches. These tables assume a single model: while rows of other models wait
or run, all waiting rows are run instead. If all recent batches of two workers ran side by side, one worker waits once
for the other to end, to measure how fast a batch is alone (`SharedSlowdown`). A wait ends before the first row would
miss its deadline. Otherwise no usable worker idles while rows wait. Before there is a table this works like `no_wait`.

If batch times by length are known, a table cannot tell rows of different lengths apart. Then `by_length` picks rows
around the oldest, so a row may start before an earlier one of its class and priority. If all rows have about one length
the table decides, for the load at that length. That is exact if times at two lengths differ by a constant factor.

A program of several stages uses the table of the whole at its first stage, and `boundary` between stages. Of rows that
join others downstream, only as many start as fit. Cells are served as by `late`, except that rows join others between
two steps only if this lowers the mean latency (`Adaptive.joins`); otherwise they join when one of those ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import boundary, by_length
from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows
from app.scheduler.policies.late import waits_for_stages
from app.scheduler.policies.view import Facts, JoinOffer, KeyView, Neighbours
from app.scheduler.rows.ready import LengthWindow
from app.scheduler.types import Formed

_CROWD = 8  # waiting rows: fewer say little about the rate
#: Standard deviations of a Poisson count. A lower threshold mistakes noise for a burst (`python -m
#: experiments.policies.simulated`: a CNN at high load); a higher one reacts late (`python -m experiments.papers.ebird`:
#: one worker).
_DEVIATIONS = 3.0
_SAME = 1.01  # lengths whose batch times differ by at most this factor count as one


class Adaptive(Policy):
    """Runs as many rows as the control table says, padded to the size that it says."""

    name = "adaptive"
    uses_tables = True
    sees_stages = True
    sees_lone_cells = False
    trims_cells = True
    reorders = True

    def passes_through(self, facts: Facts, stage: int, rows: int, longest: int) -> bool:
        return boundary.passes_through(facts, stage, rows, longest)

    def joins(self, offer: JoinOffer) -> bool:
        """Whether that lowers the sum of latencies, including the cost of one more boundary for every row.

        If they join, the joiners make `now` of their steps together with the unit's rows. If not, they make these steps
        after the unit's end: `later` of them together with the rows that stay, the others by themselves.
        """
        left, steps, joiners, time = offer.left, offer.steps, offer.joiners, offer.time
        staying, together = len(offer.stay), min(offer.stay, default=0)
        now = min(left, steps)
        later = min(steps, together) - min(steps - now, together)
        rows = offer.ending + staying
        own_ns, joined_ns, both_ns = time(rows), time(rows + joiners), time(staying + joiners)
        slower = now * (joined_ns - own_ns) + offer.boundary_ns
        spared = later * (both_ns - time(staying)) if later else 0
        behind = later * both_ns + (now - later) * time(joiners)
        sooner = left * own_ns + behind - now * joined_ns - offer.boundary_ns
        return joiners * sooner > offer.ending * slower + staying * (slower - spared)

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        neighbours, window = view.neighbours, view.length_window
        if neighbours is not None:
            if neighbours.cell:
                return Hold(None) if waits_for_stages(view) else cut_rows(view, min(view.ready, view.full))
            if view.stage:
                return boundary.decide(view, neighbours, idle, now)
            if 0 < neighbours.downstream < view.full:
                return boundary.join(view, neighbours, idle) if window is None else _follow(view, window, neighbours)
        facts = view.facts
        control = facts.control
        planned, level = view.ready, -1
        if control is not None and not (control.workers > 1 and view.shared()):
            if facts.crowded and view.column and control.workers == 2 and now < view.due:
                return _until_other_ends(view, control, now)
            level = facts.level if window is None else _level(view, control, now)
            if level >= 0:
                planned = control.serve(level, view.ready, view.column)
            if planned < view.ready and window is None and view.ready >= _CROWD:
                level = _level(view, control, now)
                planned = control.serve(level, view.ready, view.column)
        if not planned:
            assert control is not None
            if now < view.due:
                return _until_other_ends(view, control, now)
            return _cut(min(view.ready, view.limit), view, idle, Formed.DEADLINE)
        rows = min(planned, view.limit, view.full)  # `full` is less at a cell that is trimmed
        if window is not None and not _of_one_length(view, window):
            workers = control.workers if control is not None else len(idle)
            _, free = view.running_and_free()
            return _picked(view, window, min(len(idle), free, workers), idle, now)
        return _cut(rows, view, idle, Formed.TABLE if level >= 0 and rows < view.ready else Formed.IDLE)


def _until_other_ends(view: KeyView, control: ControlTables, now: int) -> Hold:
    """Wait for another worker's unit to end. That is an input, so the time is only for one that is overdue.

    How long rows have waited does not matter: with a long queue, units that slow each other would otherwise all run at
    once, and the queue would never get shorter.
    """
    assert control.beside is not None  # there are no columns without
    return Hold(min(view.due, now + round(control.beside.times[-1] * view.facts.scale)))


def _follow(view: KeyView, window: LengthWindow, neighbours: Neighbours) -> Cut:
    """Rows about as long as those downstream, as many as fit in one batch with them; or the first row alone."""
    rows = min(view.ready, view.limit, view.full - neighbours.downstream)
    places = window.joining(neighbours.longest_downstream) or range(window.place, window.place + 1)
    rows = min(rows, len(places))
    first = min(window.place, places.stop - rows)
    return Cut(rows, rows, Formed.FULL if rows == view.full else Formed.IDLE, shorter=window.place - first)


def _of_one_length(view: KeyView, window: LengthWindow) -> bool:
    """Whether all rows take about the same time, so that the table can say how many to run."""
    shortest, longest = (view.facts.lengths[0].at(length).times for length in (window.shortest, window.longest))
    return longest[0] <= _SAME * shortest[0] and longest[-1] <= _SAME * shortest[-1]


def _level(view: KeyView, control: ControlTables, now: int) -> int:
    """The level of the table for the known rate, or for the burst rate if that is significantly higher.

    With times by length and one unit at a time, the load is that of rows of the mean waiting length.
    """
    facts, window = view.facts, view.length_window
    burst = _burst(view, now) if view.ready >= _CROWD else 0.0
    if window is not None and control.workers == 1:
        a_row = facts.lengths[0].at(round(window.total / window.count)).least[-1]
        return control.level(max(facts.rate, burst), facts.scale * a_row * control.peak / 1e9)
    return max(facts.level, control.level(burst, facts.scale)) if burst else facts.level


def _burst(view: KeyView, now: int) -> float:
    """Rows per second at which the waiting rows arrived, if significantly above the known rate; else 0."""
    if view.ready >= _CROWD and (span := now - view.oldest()) > 0:
        expected = view.facts.rate * span / 1e9
        if view.ready - 1 > expected + _DEVIATIONS * sqrt(expected):
            return view.ready * 1e9 / span
    return 0.0


def _picked(view: KeyView, window: LengthWindow, free: int, idle: Sequence[int], now: int) -> Cut:
    """Rows around the oldest by length, picked as if each of `free` workers had an equal share of the rows."""
    times = view.facts.lengths[0]
    rate = max(view.facts.rate, _burst(view, now)) * view.facts.scale / 1e9
    share = view.ready / free
    rows, shorter = by_length.pick(window, times, share, min(view.limit, ceil(share)), rate / free)
    size = times.at(window.lengths[window.place - shorter + rows - 1]).sizes[rows - 1]
    reason = Formed.FULL if rows == view.full else Formed.IDLE if rows == view.ready else Formed.TABLE
    return Cut(rows, size if size <= idle[0] else rows, reason, shorter=shorter)


def _cut(rows: int, view: KeyView, idle: Sequence[int], reason: Formed) -> Cut:
    """Run `rows`, padded to the size that is fastest for them if the largest usable worker takes that."""
    control = view.facts.control
    if view.neighbours is not None and view.length_window is None:  # each stage has its own best sizes
        return boundary.begin(view, view.neighbours, rows, idle, reason)
    size = rows
    if control is not None and rows <= len(control.sizes):
        sizes = control.alone if control.alone and view.running_and_free()[0] == 1 else control.sizes
        size = sizes[rows - 1]
        if size > idle[0]:
            size = rows
    return Cut(rows, size, Formed.FULL if rows == view.full else reason)
