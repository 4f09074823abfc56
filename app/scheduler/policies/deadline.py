"""Maximises goodput, the share of calls that end in time. `objective = "deadline"` puts this in place of `adaptive`.

A unit starts as late as its first deadline allows, so batches are as large as deadlines permit. If more rows wait than
can end in time, a unit has at least as many rows as keep up with the arrival rate, and rows that would end too late are
dropped. Rows without deadlines, programs of several stages and cells are served as by `adaptive`. The rules in full:
docs/theory/policies.md.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.scheduler.estimates.lengths import LengthTimes
from app.scheduler.policies import by_length
from app.scheduler.policies.adaptive import Adaptive
from app.scheduler.policies.base import Cut, Hold, cut_padded
from app.scheduler.policies.offer import NEVER, Offer, deadlines_of
from app.scheduler.rows.estimates import Estimates
from app.scheduler.rows.ready import LengthWindow, longest_of
from app.scheduler.types import Formed


class Schedule(NamedTuple):
    """Deadlines and batch times of a key. Times in nanoseconds."""

    begins: int  # when a worker would begin a unit that is handed over now
    deadlines: Sequence[int]  # of the first rows, as many as one unit can have; NEVER for a row without one
    #: (rows, length of the longest: by default that of the first rows) -> time that 95 % of such units keep. Not all
    #: rows of the others are late. If times vary much, a higher share leaves so much time unused that more rows are
    #: late (simulated, gamma:0.3: 94 % of calls in time with this, 81 % with 0.99).
    time: Callable[..., int]
    workers: int  # units that can run at once
    timer_ns: int  # how late timers are: a hold must end that much earlier
    similar: Callable[[int, int], Sequence[int]]  # (rows, shorter) -> deadlines of these rows, see `Cut.shorter`


class Deadline(Adaptive):
    """Starts units as late as their deadlines allow."""

    name = "deadline"

    def serves_in_order(self, estimates: Estimates) -> bool:
        return not estimates.curves.lengths

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        schedule = self._schedule(offer, now) if offer.ledger.deadlines.heap and offer.state.batches is None else None
        if schedule is None:
            return super().decide(offer, now)
        window, most = offer.by_length(), min(offer.ready.count, offer.rows)
        if window is not None and window.shortest < window.longest:
            cut = _picked(offer, schedule, window, most)
        else:
            rows = _in_time(offer, schedule, most)
            cut = cut_padded(offer, rows, Formed.DEADLINE if rows == offer.ready.count else Formed.TABLE)
        _, free = offer.free()
        if cut.rows == offer.ready.count < offer.rows and not (free == 1 and offer.shared()):
            until = _held_until(offer, schedule, cut.rows, varied=window is not None)
            if max(now, schedule.begins) < until:
                return Hold(until)
        return cut

    def _schedule(self, offer: Offer, now: int) -> Schedule | None:
        """None if no row has a deadline, or times are unknown."""
        rows, sizes = offer.first(offer.rows), offer.state.estimates.curves.sizes
        deadlines = deadlines_of(rows)
        if not sizes or min(deadlines, default=NEVER) == NEVER:
            return None
        begins, longest, slower = offer.begins(now), longest_of(rows), offer.state.estimates.latency[0].quantile
        running, _ = offer.free()
        padded = sizes[0][min(running, len(sizes[0])) - 1]

        def time(rows: int, length: int = longest) -> int:
            size = padded[rows - 1] if padded[rows - 1] <= offer.rows else rows
            return round(slower * offer.state.estimates.time(size, 0, running, length, begins - now))

        def similar(rows: int, shorter: int) -> list[int]:
            return deadlines_of(offer.ready.similar(rows, shorter))

        return Schedule(begins, deadlines, time, offer.workers.at_once, offer.ledger.deadlines.timer_ns, similar)


def _held_until(offer: Offer, schedule: Schedule, rows: int, *, varied: bool) -> int:
    """Until when these rows, which are all that wait, are held: then one more could not join in time.

    `varied`: lengths differ, so the next row may take twice as long as those held.
    """
    one_more = schedule.time(rows + 1)
    until = min(schedule.deadlines) - max(one_more, schedule.time(rows) + schedule.timer_ns)
    company = offer.state.estimates.arrivals.steady / 1e9 * (until - offer.oldest())
    longest = 2 * one_more if varied else one_more
    return until if company >= 1 and longest <= _period(offer, schedule) else 0


def _in_time(offer: Offer, schedule: Schedule, most: int) -> int:
    """The most of the first rows that end in time together; if that is too few to keep up, as many as keep up and are
    in time.
    """
    deadlines, rows, first = schedule.deadlines[:most], 0, schedule.deadlines[0]
    ends = [schedule.begins + schedule.time(size) for size in range(1, most + 1)]
    for size, deadline in enumerate(deadlines, 1):
        first = min(first, deadline)
        if ends[size - 1] <= first:
            rows = size
    if rows == most:
        return rows
    enough = _keeping_up(offer, schedule, most)
    while enough > rows and sum(deadline >= ends[enough - 1] for deadline in deadlines) < enough:
        enough -= 1
    return max(rows, enough, 1)


def _keeping_up(offer: Offer, schedule: Schedule, most: int) -> int:
    """The fewest rows of a unit with which workers keep up with the rate, within the bound of the module's text."""
    rows, workers = 1, schedule.workers
    rate = offer.state.estimates.arrivals.steady / 1e9 or float("inf")
    period = _period(offer, schedule)
    while rows < most and workers * rows < rate * schedule.time(rows) and schedule.time(rows + 1) <= period:
        rows += 1
    return rows


def _period(offer: Offer, schedule: Schedule) -> float:
    """The longest time of a unit with which a row that has just missed one still ends in time with the next."""
    return (schedule.deadlines[0] - offer.oldest()) * schedule.workers / (schedule.workers + 1)


def _picked(offer: Offer, schedule: Schedule, window: LengthWindow, most: int) -> Cut:
    """Rows around the first by length that end by its deadline. If these make as many others late, the shortest, if
    more of them end in time.
    """
    times, first = offer.state.estimates.curves.lengths[0], window.lengths[window.place]
    slower = schedule.time(1, first) / times.at(first).times[0]
    within = (schedule.deadlines[0] - schedule.begins) / slower
    rate = offer.state.estimates.arrivals.steady * slower / 1e9 / schedule.workers
    rows, shorter = by_length.pick(window, times, offer.ready.count, most, rate, within)
    at = times.at(window.lengths[window.place - shorter + rows - 1])
    others = schedule.begins + schedule.time(1, round(window.total / window.count))
    late = sum(0 <= last - others < slower * at.times[rows - 1] / schedule.workers for last in schedule.deadlines)
    # A first row without a deadline is served: passed over, it would wait for ever, since it is never dropped.
    if late >= rows and schedule.deadlines[0] < NEVER:
        time = slower * at.times[rows - 1]
        in_time = sum(schedule.begins + time <= last for last in schedule.similar(rows, shorter))
        few = _shortest(schedule, window, times, min(most, len(window.lengths)), slower, in_time / time)
        if few:
            rows, shorter, at = few, window.place, times.at(window.lengths[few - 1])
    size = at.sizes[rows - 1]
    reason = Formed.DEADLINE if rows == offer.ready.count else Formed.TABLE
    return Cut(rows, size if size <= offer.capacities()[0] else rows, reason, shorter=shorter)


def _shortest(
    schedule: Schedule, window: LengthWindow, times: LengthTimes, most: int, slower: float, goodput: float
) -> int:
    """How many of the shortest rows are run together for the highest goodput; 0 if it is no higher than `goodput`.

    That is a unit's rows that end in time, by the time that it takes. Others of it may be late: where a larger batch
    takes hardly longer, units of rows that all end in time would be too small to keep up.
    """
    rows, deadlines = 0, list[int]()
    for size, last in enumerate(schedule.similar(most, window.place), 1):
        insort(deadlines, last)
        time = slower * times.at(window.lengths[size - 1]).times[size - 1]
        in_time = size - bisect_left(deadlines, schedule.begins + time)
        if in_time / time > goodput:
            goodput, rows = in_time / time, size
    return rows
