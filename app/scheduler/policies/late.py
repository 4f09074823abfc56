"""Late Batching: rows join a running cell at its next step, leave as soon as they end, and nothing is padded.

All rows that wait between two steps of a cell run the next one together, whatever step each has reached, up to the
largest batch, the oldest first. The paper has only the cell. If there are other stages, such as an embedding before it
and a head after it, the cell waits for them: always for rows that have left it, and once between two steps for rows
that are about to join it, if it has room for more rows.

The paper leaves open the largest batch and the number of units pushed ahead. Here they are the model's `max_batch` and
the device's `push_depth` and `push_ahead`. A row that wants to join must wait for the units pushed ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows
from app.scheduler.policies.view import KeyView


def waits_for_stages(view: KeyView) -> bool:
    """Whether the cell of this view waits for rows at other stages that have left it or are about to join it."""
    neighbours = view.neighbours
    if neighbours is None or not neighbours.cell:
        return False
    return neighbours.waiting_after > 0 or (
        neighbours.waiting_before > 0 and view.ready < view.full and not neighbours.newcomers
    )


class Late(Policy):
    """Joins and leaves as in the paper. A model without a cell is served as by `no_wait`."""

    name = "late"
    sees_stages = True
    sees_lone_cells = False

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        return Hold(None) if waits_for_stages(view) else cut_rows(view, view.ready)
