"""Policies of one fixed rule: start what waits, or wait for a full batch, or for one of the preferred size."""

from __future__ import annotations

from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows, hold_or_cut
from app.scheduler.policies.offer import Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import Formed


class NoWait(Policy):
    """Start all waiting rows, up to the largest batch, as soon as a worker is free (also called ad hoc, or zero
    window).

    No worker idles while rows wait. Batches form because rows gather while workers are busy.
    """

    name = "no_wait"


class Window(Policy):
    """Wait for the largest batch or for the delay of the oldest row: the rule of Triton and TF Serving.

    A full batch leaves at once; fewer rows leave when the oldest of them has waited `max_delay`, and before it would
    miss its deadline.
    """

    name = "window"
    #: Why a batch of so many rows as it waits for was formed.
    gathered = Formed.FULL

    def wanted(self, offer: Offer) -> int:
        """The rows to wait for."""
        return offer.full

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        if offer.ready.count >= (wanted := self.wanted(offer)):
            return cut_rows(offer, wanted, self.gathered)
        return hold_or_cut(offer, offer.ready.count, offer.state.program.policy.max_delay_ns, now)


class Static(Window):
    """As `window`, but every batch is padded to the largest that a usable worker can run.

    A compiled engine with a static shape must do this.
    """

    name = "static"

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        decision = super().decide(offer, now)
        if isinstance(decision, Hold):
            return decision
        size = min(offer.full, offer.capacities()[0])
        return Cut(min(decision.rows, size), size, decision.reason)


class Preferred(Window):
    """BatchMonitor and BatchDispatcher (Khan et al., Algorithm 1): gather exactly the preferred size, dispatch, repeat.

    One bound is added to the paper: once a row has waited `max_delay_ms`, or would miss its deadline, all waiting rows
    start. What it costs and gains: docs/theory/policies.md.
    """

    name = "preferred"
    gathered = Formed.TABLE

    def target(self, estimates: Estimates) -> int:
        return estimates.preferred

    def wanted(self, offer: Offer) -> int:
        return min(offer.ready.count if offer.stage else offer.state.estimates.preferred, offer.full)
