"""BatchMonitor and BatchDispatcher (Khan et al., Algorithm 1): gather exactly the preferred size, dispatch, repeat.

The preferred size is set at each tick from the arrival rate and the linear regression of batch times. The first scan
comes before the first sleep, when nothing has arrived: so it is 2 from the start, and never 1. Literally the dispatcher
has no timeout, so that a lone request waits for company for ever, and it drains a backlog no faster than one preferred
size after another. Here the letter is kept with one bound: a row that has waited `max_delay_ms`, or that would miss its
deadline if it waited on, leaves with what is there. Where the workers that are usable, or the room on the device, take
fewer rows than the preferred size, so many leave.

What it costs: at the preferred size the device is nearly always busy by design (the size is the smallest whose
throughput just exceeds the rate), so that randomness makes queues; and at low rates each row waits for a second one.
What it buys is device time, and so energy, per row.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, Policy, held
from app.scheduler.policies.view import Facts, KeyView
from app.scheduler.types import Formed


class Preferred(Policy):
    """Batches of exactly the preferred size, or what is there when the oldest row has waited long enough."""

    name = "preferred"
    holds = True

    def target(self, facts: Facts) -> int:
        return facts.preferred

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        target = min(view.ready if view.stage else view.facts.preferred, view.full)
        if view.ready >= target:
            rows = min(target, view.limit)
            return Cut(rows, rows, Formed.FULL if rows == view.full else Formed.TABLE)
        ended = held(view, view.max_delay, now)
        if isinstance(ended, Hold):
            return ended
        rows = min(view.ready, view.limit)
        return Cut(rows, rows, ended)
