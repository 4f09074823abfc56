"""Serve what waits, up to the largest batch, as soon as a worker is free (also called ad hoc, or zero window)."""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, KeyView


class NoWait:
    """Never idles while rows wait. Batches form by themselves while workers are busy."""

    holds = False

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        rows = min(view.ready, view.limit)
        return Cut(rows, rows, "full" if rows == view.full else "idle")
