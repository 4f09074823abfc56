"""As window, but every batch is padded to one fixed size: what a compiled engine with a static shape must do."""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import BasePolicy, Cut, Hold, KeyView
from app.scheduler.policies.window import Window


class Static(BasePolicy):
    """The window's decision at the size of the largest batch that a worker idle now can run."""

    name = "static"
    holds = True

    def __init__(self) -> None:
        self._window = Window()

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        decision = self._window.decide(view, idle, now)
        if isinstance(decision, Hold):
            return decision
        size = min(view.full, idle[0])
        return Cut(min(decision.rows, size), size, decision.reason)
