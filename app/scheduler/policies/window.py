"""Wait for the largest batch or for the delay of the oldest row: the rule of Triton and TF Serving."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Cut, Hold, KeyView


class Window:
    """A full batch leaves at once; fewer rows leave when the oldest of them has waited `max_delay`."""

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        if view.ready >= view.full:
            rows = min(view.limit, view.full)
            return Cut(rows, rows, "full")
        due = view.oldest + view.max_delay
        if now < due:
            return Hold(due)
        rows = min(view.ready, view.limit)
        return Cut(rows, rows, "hold_ended")
