"""What a device keeps of rows between two units. Worker threads write it, each for its own rows; the event loop
releases rows that have ended or left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch

from app.engine.pool import Slots
from app.engine.tensors import Place, rows_at
from app.models.stages.staged import SecondAxes, resized

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


class Activations(Kept[tuple[int, Place]]):
    """The tensors of rows between two stages of a placed model: for each row the stage that it has completed last, and
    its place in the result of that batch, whose memory is freed when its last row has continued, ended or left.

    A unit gets copies. For rows of different lengths, the second axis of a tensor is cut or padded with 0 if it has
    always been as long as a variable axis of its batch (`SecondAxes`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.axes = SecondAxes()

    @property
    def nbytes(self) -> int:
        """Bytes of all batches of which a row is still kept."""
        batches = {id(tensors): tensors for _, (tensors, _) in list(self.values())}
        return sum(value.nbytes for tensors in batches.values() for value in tensors)

    def commit(self, slots: Slots, stage: int, tensors: tuple[torch.Tensor, ...]) -> None:
        """The rows in these slots are the first of this result from now on, and in none of a stage before."""
        self.join(slots, [(stage, (tensors, position)) for position in range(len(slots))])

    def places_of(self, slots: Slots, stage: int) -> list[Place]:
        """The places of these rows, which must have completed `stage` last. Slots may repeat, as padding."""
        found = self.of(slots)
        if others := {completed for completed, _ in found} - {stage}:  # a bug of the scheduler
            raise RuntimeError(f"stage {stage + 1}: a row comes from stage {min(others)}")
        return [place for _, place in found]

    def learn(self, stage: int, tensors: Sequence[torch.Tensor], longest: Mapping[str, int]) -> None:
        """Learn from a result of `stage` which tensors are as long as the batch, and how much memory a row takes.

        If two workers do so at once, the smaller size may be kept; the next large batch corrects that.
        """
        if longest:
            self.axes.learn(stage, tensors, longest)
        taken = sum(value.nbytes for value in tensors)
        self.row_bytes = max(self.row_bytes, -(-2 * taken // len(tensors[0])))  # a stage's input, and its result

    def gather(
        self,
        places: Sequence[Place],
        stage: int,
        longest: Mapping[str, int],
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """The arguments of `stage` for a batch of the rows at these places, at the lengths `longest`: see `rows_at`."""

        def fit(number: int, rows: torch.Tensor) -> torch.Tensor:
            axis = self.axes.of(stage - 1, number) if longest else ""
            return resized(rows, longest[axis]) if axis else rows

        return rows_at(places, fit, into)
