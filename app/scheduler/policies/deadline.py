"""Maximises goodput, the share of calls that end in time. `objective = "deadline"` puts this in place of `adaptive`.

A unit starts as late as its first deadline d allows, so batches are as large as deadlines permit, and the device is
free for others meanwhile. Rows are held until d - T(b + 1). After that no further row could join in time, so nothing is
lost by starting earlier than d - T(b) (deferred batch scheduling, Symphony, arXiv 2308.07470). Workers become staggered
by themselves: each gets the rows that have arrived since the one before it started.

If more rows wait than can end in time, a unit cut to the first row's deadline may be so small that the backlog grows,
and later units get even smaller. Then the unit has at least as many rows as keep up with the arrival rate, and rows
that would end too late are dropped (`dispatch`). That number is the smallest b with

    N x b / T(b) >= rate,    as long as    (1 + 1 / N) x T(b) <= the time from arrival to deadline.

The bound holds because N staggered workers begin a new unit every T(b) / N, the longest that a row waits for one. For
the same reason rows are held only for units within this bound, and only if another row is expected meanwhile. The last
free worker does not hold rows while other models have some: their batch would start, and end too late for these.

T is the time that 95 % of units keep (`estimates.quantile`), as in Orloj (arXiv 2209.00159).

If batch times by length are known, rows are picked as by `adaptive`, in at most the time that the first row has. If
that would make as many other rows late as it serves, the shortest rows are served first, as many per time as possible:
some row will be late, and a long one costs the others most. So waiting rows do not predict when a later one ends, and
admission ignores them. Rows without deadlines, programs of several stages and cells are served as by `adaptive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from app.scheduler.estimates.lengths import LengthTimes
from app.scheduler.policies import by_length
from app.scheduler.policies.adaptive import Adaptive
from app.scheduler.policies.base import Cut, Hold, cut_padded
from app.scheduler.policies.view import NEVER, KeyView, Schedule
from app.scheduler.rows.ready import LengthWindow
from app.scheduler.types import Formed


class Deadline(Adaptive):
    """Starts units as late as their deadlines allow."""

    name = "deadline"
    holds = True
    sees_deadlines = True

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        schedule, window = view.schedule, view.length_window
        if schedule is None:
            return super().decide(view, idle, now)
        most = min(view.ready, view.limit, view.full)
        if window is not None and window.shortest < window.longest:
            cut = _picked(view, schedule, window, most, idle)
        else:
            rows = _in_time(view, schedule, most)
            cut = cut_padded(view, rows, idle, Formed.DEADLINE if rows == view.ready else Formed.TABLE)
        _, free = view.running_and_free()
        if cut.rows == view.ready < min(view.limit, view.full) and not (free == 1 and view.shared()):
            until = _held_until(view, schedule, cut.rows)
            if max(now, schedule.begins) < until:
                return Hold(until)
        return cut


def _held_until(view: KeyView, schedule: Schedule, rows: int) -> int:
    """Until when these rows, which are all that wait, are held: then one more could not join in time."""
    one_more = schedule.time(rows + 1)
    until = min(schedule.deadlines) - max(one_more, schedule.time(rows) + schedule.timer_ns)
    company = view.facts.rate / 1e9 * (until - view.oldest())
    # If lengths differ, the next row may take twice as long as those held.
    longest = one_more if view.length_window is None else 2 * one_more
    return until if company >= 1 and longest <= _period(view, schedule) else 0


def _in_time(view: KeyView, schedule: Schedule, most: int) -> int:
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
    enough = _keeping_up(view, schedule, most)
    while enough > rows and sum(deadline >= ends[enough - 1] for deadline in deadlines) < enough:
        enough -= 1
    return max(rows, enough, 1)


def _keeping_up(view: KeyView, schedule: Schedule, most: int) -> int:
    """The fewest rows of a unit with which workers keep up with the rate, within the bound of the module's text."""
    rows, workers = 1, schedule.workers
    rate = view.facts.rate / 1e9 or float("inf")
    period = _period(view, schedule)
    while rows < most and workers * rows < rate * schedule.time(rows) and schedule.time(rows + 1) <= period:
        rows += 1
    return rows


def _period(view: KeyView, schedule: Schedule) -> float:
    """The longest time of a unit with which a row that has just missed one still ends in time with the next."""
    return (schedule.deadlines[0] - view.oldest()) * schedule.workers / (schedule.workers + 1)


def _picked(view: KeyView, schedule: Schedule, window: LengthWindow, most: int, idle: Sequence[int]) -> Cut:
    """Rows around the first by length that end by its deadline; or the shortest, if these make as many others late."""
    times, first = view.facts.lengths[0], window.lengths[window.place]
    slower = schedule.time(1, first) / times.at(first).times[0]
    within = (schedule.deadlines[0] - schedule.begins) / slower
    rate = view.facts.rate * slower / 1e9 / schedule.workers
    rows, shorter = by_length.pick(window, times, view.ready, most, rate, within)
    at = times.at(window.lengths[window.place - shorter + rows - 1])
    others = schedule.begins + schedule.time(1, round(window.total / window.count))
    late = sum(0 <= last - others < slower * at.times[rows - 1] / schedule.workers for last in schedule.deadlines)
    # A first row without a deadline is served: passed over, it would wait for ever, since it is never dropped.
    if late >= rows and schedule.deadlines[0] < NEVER:
        few = _shortest(schedule, window, times, min(most, len(window.lengths)), slower)
        if few:
            rows, shorter, at = few, window.place, times.at(window.lengths[few - 1])
    size = at.sizes[rows - 1]
    reason = Formed.DEADLINE if rows == view.ready else Formed.TABLE
    return Cut(rows, size if size <= idle[0] else rows, reason, shorter=shorter)


def _shortest(schedule: Schedule, window: LengthWindow, times: LengthTimes, most: int, slower: float) -> int:
    """How many of the shortest rows end in time together, with the highest throughput; 0 if not even one does."""
    best, rows = 0.0, 0
    for size, last in enumerate(accumulate(schedule.similar(most, window.place), min), 1):
        time = times.at(window.lengths[size - 1]).times[size - 1]
        if schedule.begins + slower * time <= last and size / time > best:
            best, rows = size / time, size
    return rows
