"""The batches that left lately: collected only while somebody watches, and never more than a few hundred."""

from __future__ import annotations

from collections import deque
from typing import Any

from app.scheduler.types import Outcome, Unit

#: Between two looks; at four looks a second a page can tell no more of them apart.
MOST = 256

#: What one batch is sent as. Times are microseconds: `began` on the page's clock, `took` from there to its end.
FIELDS = (
    "program", "stage", "steps", "worker", "rows", "size", "reason", "operation", "class", "began", "took", "compute",
    "error",
)  # fmt: skip


class Batches:
    """Hears of each unit that ends. `origin`: nanoseconds on the engine's clock that times are counted from."""

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self._newest: deque[tuple[Any, ...]] = deque(maxlen=MOST)
        self._heard = 0

    def heard(self, unit: Unit, outcome: Outcome, began: int, ended: int) -> None:
        """Called for each unit while somebody watches. The unit itself is not kept: its rows hold calls."""
        self._heard += 1
        self._newest.append((
            unit.program, unit.stage, outcome.steps, unit.worker, len(unit.rows), unit.size, unit.reason,
            unit.operation, unit.klass.value, (began - self._origin) // 1000, (ended - began) // 1000,
            outcome.compute_ns // 1000, outcome.error,
        ))  # fmt: skip

    def take(self) -> tuple[list[tuple[Any, ...]], int]:
        """Those since the last look, oldest first, and how many more there were before them."""
        found = list(self._newest)
        left_out = self._heard - len(found)
        self._newest.clear()
        self._heard = 0
        return found, left_out
