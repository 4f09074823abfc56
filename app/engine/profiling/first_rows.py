"""The first rows that a model has run without a fault which raised on made-up ones: copied from their slots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.contract import SampleRow
from app.engine.pool import Pool
from app.models.checks.samples import ROWS, content_of

_LOOKED_AT = 64  # rows: a client that repeats itself must not cost a copy for each of its calls for ever


class FirstRows:
    """Copies of the first rows that differ, at most ROWS of them."""

    def __init__(self) -> None:
        self.rows: list[SampleRow] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._looked_at = 0

    def add(self, pool: Pool, slots: Iterable[int]) -> bool:
        """Look at rows that have run. True when there are enough, or when no more will be looked at."""
        for slot in slots:
            row = pool.row(slot)
            content = content_of(row)
            self._looked_at += 1
            if content not in self._seen:
                self._seen.add(content)
                self.rows.append(row)
            if len(self.rows) == ROWS or self._looked_at == _LOOKED_AT:
                return True
        return False
