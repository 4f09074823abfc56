"""Late Batching: rows join a running cell at its next step, leave as soon as they end, and nothing is padded.

All rows that wait between two steps run the next one together, up to the largest batch, the oldest first. The cell
waits for rows at other stages that have left it, and once between two steps for rows that are about to join it. What
the paper leaves open: docs/theory/policies.md.
"""

from __future__ import annotations

from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows
from app.scheduler.policies.offer import Offer


def decide(offer: Offer) -> Cut | Hold:
    """All that wait run, unless they are at a cell and rows at other stages have left it or are to join it."""
    if offer.cell and len(offer.state.program.stages) > 1:
        neighbours = offer.neighbours()
        before, after = neighbours.wait_elsewhere()
        if after or (before and offer.ready.count < offer.full and not neighbours.newcomers):
            return Hold(None)
    return cut_rows(offer, offer.ready.count)


class Late(Policy):
    """Joins and leaves as in the paper. A model without a cell is served as by `no_wait`."""

    name = "late"
    merges = True

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        return decide(offer)
