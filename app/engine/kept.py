"""What a device keeps of rows between two units. Worker threads write it, each for its own rows; the event loop
releases rows that have ended or left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from app.engine.pool import Slots

R = TypeVar("R")


class Kept(dict[int, R]):
    """Of one placed model: what is known of each row, by its slot, which it has until it ends.

    `row_bytes`: the most that a row has taken so far, twice if what a unit reads and makes of it exist at once; 0:
    memory for all slots is reserved. `reserved`: rows that memory is reserved for; 0: it is allocated as needed.
    `place_bytes`: of a row's place in slabs.
    """

    reserved = 0
    row_bytes = 0
    place_bytes = 0

    def bound(self, most: int) -> None:
        """At most so many rows will be alive at once. Called before serving."""

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return len(self) * self.place_bytes

    def missing(self, slots: Slots) -> list[int]:
        """Those of these slots of whose rows nothing is kept."""
        return [slot for slot in slots if slot not in self]

    def of(self, slots: Slots) -> list[R]:
        """The rows in these slots, which are kept."""
        return [self[slot] for slot in slots]

    def join(self, slots: Slots, rows: Iterable[R]) -> None:
        """Keep rows, or what is known of them from now on."""
        self.update(zip(slots, rows, strict=True))

    def release(self, slots: Slots) -> None:
        """Forget these rows, which will not continue. Rows that are not kept are ignored."""
        for slot in slots:
            row = self.pop(slot, None)
            if row is not None:
                self._left(row)

    def _left(self, row: R) -> None:
        """A row was released. On the event loop."""
