"""The exact control table for the measured curve: the default.

For each load there is a table, solved off the loop, that says how many of the rows that wait to run now (see `control`
and `optimal`). The rate monitor's window names the table; the queue is the table's state, so a burst is seen at once.
Under the objective `latency` no usable worker idles while rows wait; under others rows may be held for company, until

    more come, and the table says run; or
    the first row would miss its deadline; or
    it has waited several times what the wait was expected to last.

Before there is a table, and at stages behind the first, it does as `no_wait` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import Cut, Hold, KeyView


class Adaptive:
    """Runs what the control table says, at the size that it says."""

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        facts = view.facts
        control = facts.control
        if control is None or facts.level < 0:
            return _cut(min(view.ready, view.limit), view, idle, "idle")
        free = min(len(idle), view.free, control.workers)
        planned = control.serve(facts.level, -(-view.ready // free))
        if planned:
            rows = min(planned, view.limit)
            return _cut(rows, view, idle, "idle" if rows == view.ready else "table")
        ends = min(view.oldest + control.hold_ns[facts.level], view.due)
        if now < ends:
            return Hold(ends)
        reason = "deadline" if ends == view.due else "hold_ended"
        return _cut(min(view.ready, view.limit), view, idle, reason)


def _cut(rows: int, view: KeyView, idle: Sequence[int], reason: str) -> Cut:
    """Run `rows` at the size that is fastest for them, where a worker that is idle takes it."""
    control = view.facts.control
    size = rows
    if control is not None and rows <= len(control.sizes):
        size = control.sizes[rows - 1]
        if size > idle[0]:
            size = rows
    return Cut(rows, size, "full" if rows == view.full else reason)
