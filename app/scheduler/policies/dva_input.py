"""DVABatch's Policy I, for inputs of different lengths: similar ones together, and batches side by side.

Rows are clustered by length: the model's `length_buckets` are the clusters, and a batch is padded only to its own
longest row. A window ends when as many rows wait as the largest batch, over all clusters, or after the time that the
first stage takes for the largest batch; then each cluster is a batch of its own (`new`). Batches stay as they are to
the end, run at once on as many workers as there are, and no more rows than the largest batch are in the pipeline.

The window is counted from when the last batch was formed, if that is still under way: while it may be in the first
stage, others gather. The paper does not say from when. Counted from the first row that waits, as in Triton, each row
would wait for several times what it takes alone, and the paper has less latency than without a window at low load.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import BasePolicy, Cut, Hold, KeyView, go, held
from app.scheduler.types import Formed


class DvaInput(BasePolicy):
    """Policy I. Where nothing is measured, and for a model of one stage, there is no window."""

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
        formed = -1
        if around is not None:
            active, beside, formed = around.active, around.beside, around.formed
        if active >= view.full:
            return Hold(None)  # until some of them end
        rows = min(view.ready, view.full - active)
        if view.ready + beside >= view.full or formed < 0 or view.oldest <= formed:
            return go(view, rows, Formed.TABLE)  # the window has ended, now or when the last batch was formed
        behind = remaining[1][view.full - 1] if len(remaining) > 1 else 0
        window = remaining[0][view.full - 1] - behind if remaining else 0
        ended = held(view, formed + window - view.oldest, now)
        return ended if isinstance(ended, Hold) else go(view, rows, ended)
