"""The default policy: looks up the exact control table for the measured curve of batch times.

It runs as many rows as the table for the load says, padded to the size that is fastest. Without a table it serves all
that waits, or of many rows the size that may be fastest. Where times by length are known it picks rows by them, cells
it serves as `late`, and between stages `boundary` decides. No usable worker idles while rows wait, unless the table of
several workers says so. Why: docs/theory/policies.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import boundary, by_length, late
from app.scheduler.policies.base import Cut, Hold, Policy
from app.scheduler.policies.offer import JoinOffer, Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.rows.ready import LengthWindow
from app.scheduler.types import Formed, Row

_CROWD = 8  # waiting rows: fewer say little about the rate
#: Standard deviations of a Poisson count. A lower threshold mistakes noise for a burst (`python -m
#: experiments.policies.simulated`: a CNN at high load); a higher one reacts late (`python -m experiments.papers.ebird`:
#: one worker).
_DEVIATIONS = 3.0
_NEARLY = 0.95  # share of the highest throughput that counts as the highest
#: Decisions of tables, of which one is not followed; and of those with a full batch waiting, where trying costs little:
#: with 10, and with 1, queues stay long for longer (`python -m experiments.policies.learned`, near the peak).
_TRIED, _TRIED_FULL = 100, 3
_MANY = 4  # full batches: so many wait before the first table only where full batches are too slow
_SAME = 1.01  # lengths whose batch times differ by at most this factor count as one


class Adaptive(Policy):
    """Runs as many rows as the control table says, padded to the size that it says."""

    name = "adaptive"
    uses_tables = merges = True

    def __init__(self) -> None:
        self._decisions = 0  # of tables

    def reorders(self, estimates: Estimates) -> bool:
        return bool(estimates.curves.lengths)

    def largest(self, speeds: Sequence[float]) -> int:
        """The smallest size with nearly the highest throughput."""
        return next(size for size, speed in enumerate(speeds, 1) if speed >= _NEARLY * max(speeds))

    def passes_through(self, estimates: Estimates, stage: int, rows: Sequence[Row]) -> bool:
        return boundary.passes_through(estimates, stage, rows)

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

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        window = offer.by_length() if offer.state.estimates.curves.lengths else None
        if offer.state.batches is not None and (decided := _at_stage(offer, window, now)) is not None:
            return decided
        if offer.workers.most == 2 and (ends := _alone_from(offer, now)) > now:
            return Hold(ends)
        planned, waiting = self._planned(offer, window, now), offer.ready.count
        if not planned:
            until = _until_other_ends(offer, now)
            return Hold(until) if now < until else _cut(offer, waiting, window, Formed.DEADLINE)
        if window is not None and not _of_one_length(offer, window):
            return _picked(offer, window, now)
        return _cut(offer, planned, window, Formed.TABLE if planned < waiting else Formed.IDLE)

    def _planned(self, offer: Offer, window: LengthWindow | None, now: int) -> int:
        """Rows to run by the table, 0 for none; without one see the module's text."""
        estimates, waiting = offer.state.estimates, offer.ready.count
        control = estimates.control
        if control is None and window is None and waiting >= _MANY * offer.full and estimates.latency[0].uncertain:
            return estimates.hopeful(offer.full)  # full batches do not keep up
        if control is None or (control.workers > 1 and offer.shared()):
            return waiting
        level = estimates.level if window is None else _level(offer, control, window, now)
        if level < 0:
            return waiting
        column = column_of(offer, control, now)
        planned = control.serve(level, waiting, column)
        if window is not None:
            return planned
        if planned < waiting:  # in a burst it may be more; otherwise its table is not asked, which could say to wait
            planned = control.serve(_level(offer, control, None, now), waiting, column)
        return self._tried(offer, planned)

    def _tried(self, offer: Offer, planned: int) -> int:
        """Rows to run although the table says `planned`: so it is found out if that would pay.

        What the table avoids is never measured otherwise. One decision in so many costs up to 3 % of the mean. To try
        only sizes whose error is large saves that, but what is wrong although it counts as known is not found out.
        """
        waiting, estimates = offer.ready.count, offer.state.estimates
        if not estimates.latency[0].uncertain:
            return planned
        self._decisions += 1
        if planned and waiting >= offer.full:  # to wait is decided at each arrival
            return planned if self._decisions % _TRIED_FULL else estimates.hopeful(offer.full)
        return planned if self._decisions % _TRIED else waiting


def _at_stage(offer: Offer, window: LengthWindow | None, now: int) -> Cut | Hold | None:
    """The decision for rows of a program with stages or a cell; None where it is that of a whole model."""
    if offer.cell:
        return late.decide(offer)
    neighbours = offer.neighbours()
    if offer.stage:
        return boundary.decide(offer, neighbours, now)
    if window is None and 0 < neighbours.downstream < offer.full:
        return boundary.join(offer, neighbours)
    return None


def _alone_from(offer: Offer, now: int) -> int:
    """Of two workers, while times of batches alone are unknown: when the other one's unit is predicted to end.

    Earlier if a row is due; else `now`.
    """
    if not offer.state.estimates.latency[0].speed.crowded or offer.shared():
        return now
    ends = [unit.forecast.begins + unit.forecast.predicted for unit in offer.others()]
    return min(offer.due(now), max(ends, default=now))


def column_of(offer: Offer, control: ControlTables, now: int) -> int:
    """The column of the tables of several workers, by the time that the other workers have left.

    0 if more than one worker is free, or all running units are overdue by more than the largest batch takes. A unit
    that began with fewer beside it is assumed to take longer from now on, as in the tables.
    """
    beside = control.beside
    if beside is None or not offer.workers.busy or offer.free()[1] > 1:
        return 0
    most, scale, total, size = offer.workers.most, offer.state.estimates.scale, 0.0, 0
    overdue = now - beside.times[-1] * scale
    units = [unit for unit in offer.others() if unit.forecast.begins + unit.forecast.predicted > overdue]
    for unit in units:
        left = max(0, unit.forecast.begins + unit.forecast.predicted - now) / scale
        if unit.program == offer.ready.key[0]:
            size, latency = max(size, unit.size), offer.state.estimates.latency[unit.stage]
            if unit.forecast.running < most and latency.known:
                left *= latency.predict(unit.size, most) / latency.predict(unit.size, unit.forecast.running)
        total += left
    return beside.column(size, total / (most - 1)) if units else 0


def _until_other_ends(offer: Offer, now: int) -> int:
    """Until when to wait for another worker's unit to end. That is an input, so the time is for one that is overdue.

    Earlier if a row is due. How long rows have waited does not matter: with a long queue, units that slow each other
    would otherwise all run at once, and the queue would never get shorter.
    """
    control = offer.state.estimates.control
    beside = None if control is None else control.beside
    assert beside is not None  # no other tables say to wait
    return min(offer.due(now), now + round(beside.times[-1] * offer.state.estimates.scale))


def _of_one_length(offer: Offer, window: LengthWindow) -> bool:
    """Whether all rows take about the same time, so that the table can say how many to run."""
    shortest, longest = (
        offer.state.estimates.curves.lengths[0].at(length).times for length in (window.shortest, window.longest)
    )
    return longest[0] <= _SAME * shortest[0] and longest[-1] <= _SAME * shortest[-1]


def _level(offer: Offer, control: ControlTables, window: LengthWindow | None, now: int) -> int:
    """The level of the table for the known rate, or for the burst rate if that is significantly higher.

    With times by length and one unit at a time, the load is that of rows of the mean waiting length.
    """
    facts = offer.state.estimates
    burst = _burst(offer, now)
    if window is not None and control.workers == 1:
        a_row = facts.curves.lengths[0].at(round(window.total / window.count)).least[-1]
        return control.level(max(facts.arrivals.steady, burst), facts.scale * a_row * control.peak / 1e9)
    return max(facts.level, control.level(burst, facts.scale)) if burst else facts.level


def _burst(offer: Offer, now: int) -> float:
    """Rows per second at which the waiting rows arrived, if significantly above the known rate; else 0."""
    if offer.ready.count >= _CROWD and (span := now - offer.oldest()) > 0:
        expected = offer.state.estimates.arrivals.steady * span / 1e9
        if offer.ready.count - 1 > expected + _DEVIATIONS * sqrt(expected):
            return offer.ready.count * 1e9 / span
    return 0.0


def _picked(offer: Offer, window: LengthWindow, now: int) -> Cut:
    """Rows around the oldest by length, picked as if each of the free workers had an equal share of the rows."""
    times, control = offer.state.estimates.curves.lengths[0], offer.state.estimates.control
    _, startable = offer.free()
    free = min(len(offer.usable), startable, startable if control is None else control.workers)
    rate = max(offer.state.estimates.arrivals.steady, _burst(offer, now)) * offer.state.estimates.scale / 1e9
    share = offer.ready.count / free
    rows, shorter = by_length.pick(window, times, share, min(offer.rows, ceil(share)), rate / free)
    size = times.at(window.lengths[window.place - shorter + rows - 1]).sizes[rows - 1]
    reason = Formed.FULL if rows == offer.full else Formed.IDLE if rows == offer.ready.count else Formed.TABLE
    return Cut(rows, size if size <= offer.capacities()[0] else rows, reason, shorter=shorter)


def _cut(offer: Offer, rows: int, window: LengthWindow | None, reason: Formed) -> Cut:
    """Run `rows`, or as many as can, padded to the size that is fastest if the largest usable worker takes that."""
    control, rows = offer.state.estimates.control, min(rows, offer.rows)
    if offer.state.batches is not None and window is None:  # each stage has its own best sizes
        return boundary.begin(offer, offer.neighbours(), rows, reason)
    size = rows
    if control is not None and rows <= len(control.sizes):
        sizes = control.alone if control.alone and offer.free()[0] == 1 else control.sizes
        size = sizes[rows - 1]
        if size > rows and size > offer.capacities()[0]:
            size = rows
    return Cut(rows, size, Formed.FULL if rows == offer.full else reason)
