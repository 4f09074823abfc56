"""DVABatch's Policy III, for changing load, together with II: latecomers catch up with a batch that is under way.

Rows that arrive while the latest batch runs begin as part of it (`stretch`), if it is young enough, has room for them
and is not going to be split: at once where a worker is free, else when the batch has reached its next boundary. There
it waits until they stand beside it.

Young enough: the paper bounds the age of the batch by a time T_comp_wait and gives no value. Here it is
`complete_wait` x T(1), a part of the time that one row takes through all stages. The artefact also bounds the number of
stages passed; here a batch may be stretched until it has begun its last stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, KeyView
from app.scheduler.policies.dva_operator import DvaOperator, part_of
from app.scheduler.types import Batch, Formed


class DvaLoad(DvaOperator):
    """Policies II and III."""

    name = "dva_load"

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        around = view.around
        if around is None or around.cell:
            return super().decide(view, idle, now)
        batch = around.batch
        if batch is not None:
            may_come = batch is around.latest and around.nearest[0] == 0 and stretchable(batch, view, now)
            return Hold(None) if around.late or may_come else super().decide(view, idle, now)
        rows = min(view.ready, view.limit)
        latest = around.latest
        if latest is not None and stretchable(latest, view, now):
            rows = min(rows, view.full - latest.size)
            return Cut(rows, rows, Formed.FULL if rows == view.full else Formed.TABLE, joins=latest)
        return super().decide(view, idle, now)


def stretchable(batch: Batch, view: KeyView, now: int) -> bool:
    """Whether rows may still join a batch that is under way."""
    remaining = view.facts.remaining
    if not remaining or batch.closed or batch.launched[-1] or batch.size >= view.full:
        return False
    if now - batch.created >= view.facts.complete_wait * remaining[0][0]:
        return False
    return all(part_of(batch.size, times) == batch.size for times in remaining[1:])
