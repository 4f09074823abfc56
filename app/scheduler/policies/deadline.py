"""Goodput, the share of calls that end in time: what `objective = "deadline"` makes of `adaptive`.

A unit starts as late as its first deadline d allows, so that batches are as large as deadlines permit, and the device
is free for others meanwhile. Rows are held until d - T(b + 1): from then on no further row would fit in time, so that
nothing is lost by starting before d - T(b) (deferred batch scheduling, Symphony, arXiv 2308.07470). Workers stagger by
themselves: each is handed what has come since the one before it.

When more rows wait than fit, a unit that is cut to the first row's deadline may be so small that the backlog grows, and
the next ones are smaller still. Then rows that are nearly late go instead: the unit has at least as many rows as keep
up with the rate of arrival, and those that would end too late leave (`dispatch`). These are the fewest rows b with

    N x b / T(b) >= rate,    and at most as many as  (1 + 1 / N) x T(b) <= the time from arrival to deadline

allows: N staggered workers turn to a new unit every T(b) / N, which is the longest that a row waits for one. For the
same reason rows are held only for units that take no longer, and only where another row is expected meanwhile. The last
free worker is not held while other models have rows: a batch of these would begin, and end too late for those held.

T is the time that 95 % of units keep (`estimates.quantile`), as in Orloj (arXiv 2209.00159).

Where batch times by length are known, rows are picked as by `adaptive`, in no more time than the first row has. Where
that would make as many other rows late as it serves, the shortest rows go first, the most for their time: some row will
be late, and a long one costs the others most. So rows that wait do not say when a later one ends, and admission does
not refuse it for them. Rows without deadlines, programs of several stages and cells are served as by `adaptive`.
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
        if cut.rows == view.ready < min(view.limit, view.full) and not (view.free == 1 and view.shared()):
            until = _held_until(view, schedule, cut.rows)
            if max(now, schedule.begins) < until:
                return Hold(until)
        return cut


def _held_until(view: KeyView, schedule: Schedule, rows: int) -> int:
    """Until when these rows, which are all that wait, are held: then one more would be too many."""
    one_more = schedule.time(rows + 1)
    until = min(schedule.deadlines) - max(one_more, schedule.time(rows) + schedule.timer_ns)
    company = view.facts.rate / 1e9 * (until - view.oldest())
    # Where lengths differ, the next row may take twice as long as those that are held.
    longest = one_more if view.length_window is None else 2 * one_more
    return until if company >= 1 and longest <= _period(view, schedule) else 0


def _in_time(view: KeyView, schedule: Schedule, most: int) -> int:
    """The most of the first rows that end in time together, but no fewer than keep up, where so many are in time."""
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
    """Rows of a unit that serves as many as arrive, or that staggered workers can serve in time."""
    rows, workers = 1, schedule.workers
    rate = view.facts.rate / 1e9 or float("inf")
    period = _period(view, schedule)
    while rows < most and workers * rows < rate * schedule.time(rows) and schedule.time(rows + 1) <= period:
        rows += 1
    return rows


def _period(view: KeyView, schedule: Schedule) -> float:
    """The longest that units may take, if a row that has just missed one is to end in time with the next."""
    return (schedule.deadlines[0] - view.oldest()) * schedule.workers / (schedule.workers + 1)


def _picked(view: KeyView, schedule: Schedule, window: LengthWindow, most: int, idle: Sequence[int]) -> Cut:
    """Rows around the first by length that end by its deadline; the shortest where these make as many others late."""
    times, first = view.facts.lengths[0], window.lengths[window.place]
    slower = schedule.time(1, first) / times.at(first).times[0]
    within = (schedule.deadlines[0] - schedule.begins) / slower
    rate = view.facts.rate * slower / 1e9 / schedule.workers
    rows, shorter = by_length.pick(window, times, view.ready, most, rate, within)
    at = times.at(window.lengths[window.place - shorter + rows - 1])
    others = schedule.begins + schedule.time(1, round(window.total / window.count))
    late = sum(0 <= last - others < slower * at.times[rows - 1] / schedule.workers for last in schedule.deadlines)
    # A first row without a deadline goes: it would never leave, and wait for ever.
    if late >= rows and schedule.deadlines[0] < NEVER:
        few = _shortest(schedule, window, times, min(most, len(window.lengths)), slower)
        if few:
            rows, shorter, at = few, window.place, times.at(window.lengths[few - 1])
    size = at.sizes[rows - 1]
    reason = Formed.DEADLINE if rows == view.ready else Formed.TABLE
    return Cut(rows, size if size <= idle[0] else rows, reason, shorter=shorter)


def _shortest(schedule: Schedule, window: LengthWindow, times: LengthTimes, most: int, slower: float) -> int:
    """How many of the shortest rows end in time together, the most for each nanosecond; 0 where not even one does."""
    best, rows = 0.0, 0
    for size, last in enumerate(accumulate(schedule.similar(most, window.place), min), 1):
        time = times.at(window.lengths[size - 1]).times[size - 1]
        if schedule.begins + slower * time <= last and size / time > best:
            best, rows = size / time, size
    return rows
