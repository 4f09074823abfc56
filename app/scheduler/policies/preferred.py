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

from app.scheduler.policies.base import Cut, Hold, Policy, held
from app.scheduler.policies.offer import Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import Formed


class Preferred(Policy):
    """Batches of exactly the preferred size, or all waiting rows once the oldest has waited long enough."""

    name = "preferred"

    def target(self, estimates: Estimates) -> int:
        return estimates.preferred

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        target = min(offer.waiting if offer.stage else offer.estimates.preferred, offer.full)
        if offer.waiting >= target:
            rows = min(target, offer.rows)
            return Cut(rows, rows, Formed.FULL if rows == offer.full else Formed.TABLE)
        ended = held(offer, offer.state.program.max_delay_ns, now)
        if isinstance(ended, Hold):
            return ended
        rows = min(offer.waiting, offer.rows)
        return Cut(rows, rows, ended)
