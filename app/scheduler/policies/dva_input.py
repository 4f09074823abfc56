"""DVABatch's Policy I, for inputs of different lengths: similar ones together, and batches side by side.

Rows are clustered by length: the model's `length_buckets` are the clusters, and a batch is padded only to its own
longest row. A window ends when as many rows wait as the largest batch, over all clusters, or after the time that the
first stage takes for the largest batch; then each cluster is a batch of its own (`new`). Batches stay as they are to
the end, run at once on as many workers as there are, and no more rows than the largest batch are in the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import BasePolicy, Cut, Hold, KeyView, go, held
from app.scheduler.types import Formed


class DvaInput(BasePolicy):
    """Policy I. A model of one stage is given batches by the same window; where nothing is measured it is 0."""

    name = "dva_input"
    holds = True
    sees_stages = True

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        around, remaining = view.around, view.facts.remaining
        if around is not None and around.cell:
            return go(view, view.ready)
        if around is not None and around.batch is not None:
            return go(view, around.here)
        active = beside = 0
        oldest, formed = view.oldest, -1
        if around is not None:
            active, beside, oldest, formed = around.active, around.beside, around.oldest, around.formed
        if active >= view.full:
            return Hold(None)  # until some of them end
        rows = min(view.ready, view.full - active)
        if view.ready + beside >= view.full or view.oldest <= formed:
            return go(view, rows, Formed.TABLE)  # the window has ended, now or when the last batch was formed
        behind = remaining[1][view.full - 1] if len(remaining) > 1 else 0
        window = remaining[0][view.full - 1] - behind if remaining else 0
        ended = held(view, oldest + window - view.oldest, now)
        return ended if isinstance(ended, Hold) else go(view, rows, ended)
