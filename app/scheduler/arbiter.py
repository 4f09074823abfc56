"""Which ready set goes first on a device: class, then priority, then the oldest head.

The oldest head first is what keeps one busy model from starving another: a row of the quiet model is served as soon as
the rows that came before it are. A lower priority can wait for ever behind a higher one; that is what it asks for.
"""

from __future__ import annotations

from collections.abc import Collection

from app.scheduler.ready import Rank, ReadySet, rank
from app.scheduler.ready_table import ReadyTable


class Arbiter:
    """Chooses among the sets of one ready table."""

    def __init__(self, ready: ReadyTable) -> None:
        self._ready = ready

    def first(self, held: Collection[ReadySet]) -> ReadySet | None:
        """The set to serve next among those not held back, or None."""
        best: ReadySet | None = None
        best_rank: Rank | None = None
        for ready in self._ready.waiting():
            if ready in held:
                continue
            row = ready.head()
            if row is None:
                continue
            own = rank(row)
            if best_rank is None or own < best_rank:
                best, best_rank = ready, own
        return best
