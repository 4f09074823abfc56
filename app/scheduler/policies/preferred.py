"""BatchMonitor and BatchDispatcher (Khan et al., Algorithm 1): gather exactly the preferred size, dispatch, repeat.

One bound is added to the paper: once a row has waited `max_delay_ms`, or would miss its deadline, all waiting rows
start. What it costs and gains: docs/theory/policies.md.
"""

from __future__ import annotations

from app.scheduler.policies.fixed import Window
from app.scheduler.policies.offer import Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import Formed


class Preferred(Window):
    """Batches of exactly the preferred size, or all waiting rows once the oldest has waited long enough."""

    name = "preferred"
    gathered = Formed.TABLE

    def target(self, estimates: Estimates) -> int:
        return estimates.preferred

    def wanted(self, offer: Offer) -> int:
        return min(offer.ready.count if offer.stage else offer.state.estimates.preferred, offer.full)
