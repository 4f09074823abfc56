"""Late Batching: rows join a running cell at the very next step, leave it at once, and nothing is padded.

All rows that are between two steps of a cell run the next one together, whatever step each has reached, up to the
largest batch, the oldest first. The paper has one kind of block. With stages around the cell, as an embedding before it
and a head behind it, joining at the next step and leaving at once mean that these go before the cell's next step: the
rows behind it always, those before it once between two steps, and only while the cell has room for more rows.

The paper leaves the largest batch and the number of blocks pushed ahead open: they are the model's `max_batch` and the
device's `push_depth` and `push_ahead`. What is pushed ahead is what a row waits for before it can join.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows
from app.scheduler.policies.view import KeyView


def waits_for_stages(view: KeyView) -> bool:
    """Whether a cell lets rows go first that leave it, or that are about to join it."""
    neighbours = view.neighbours
    if neighbours is None or not neighbours.cell:
        return False
    return neighbours.waiting_after > 0 or (
        neighbours.waiting_before > 0 and view.ready < view.full and not neighbours.newcomers
    )


class Late(Policy):
    """The paper's join and leave. A model without a cell is served as by `no_wait`."""

    name = "late"
    sees_stages = True
    sees_lone_cells = False

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        return Hold(None) if waits_for_stages(view) else cut_rows(view, view.ready)
