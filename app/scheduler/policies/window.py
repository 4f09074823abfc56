"""Wait for the largest batch or for the delay of the oldest row: the rule of Triton and TF Serving.

No row waits so long that it would miss its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import BasePolicy, Cut, Hold, KeyView, held
from app.scheduler.types import Formed


class Window(BasePolicy):
    """A full batch leaves at once; fewer rows leave when the oldest of them has waited `max_delay`."""

    name = "window"
    holds = True

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        if view.ready >= view.full:
            rows = min(view.limit, view.full)
            return Cut(rows, rows, Formed.FULL)
        ended = held(view, view.max_delay, now)
        if isinstance(ended, Hold):
            return ended
        rows = min(view.ready, view.limit)
        return Cut(rows, rows, ended)
