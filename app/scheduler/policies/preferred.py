"""BatchMonitor and BatchDispatcher (Khan et al., Algorithm 1): gather exactly the preferred size, dispatch, repeat.

The preferred size is set at each tick from the arrival rate and the linear regression of batch times. In the paper the
first scan comes before anything has arrived, so the size is 2 from the start, and never 1. The paper's dispatcher has
no timeout: a lone request would wait for ever, and a backlog is drained one preferred size after another. Here one
bound is added: once a row has waited `max_delay_ms`, or would miss its deadline, all waiting rows start. If the usable
workers or the room on the device take fewer rows than the preferred size, that many start.

The cost: the preferred size is the smallest whose throughput just exceeds the rate, so the device is nearly always busy
and random arrivals queue. At low rates each row waits for a second one. The gain: less device time and energy per row.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, Policy, held
from app.scheduler.policies.view import Facts, KeyView
from app.scheduler.types import Formed


class Preferred(Policy):
    """Batches of exactly the preferred size, or all waiting rows once the oldest has waited long enough."""

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
