"""The tensors of rows between two stages of a model: for each row, the batch that returned them and its position there.

A unit gets copies. A batch's memory is freed when its last row has continued, ended or been released.

For rows of different lengths, the second axis of a tensor is cut or padded with 0 if it has always been as long as a
variable axis of its batch (`SecondAxes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch

from app.engine.kept import Kept
from app.engine.pool import Slots
from app.engine.tensors import neighbours
from app.models.stages.staged import SecondAxes, resized


@dataclass(slots=True, eq=False)
class Passed:
    """The result of one batch at `stage`: tensors [rows, ...]."""

    stage: int
    tensors: tuple[torch.Tensor, ...]


Place = tuple[Passed, int]


class Activations(Kept[Place]):
    """Of one placed model."""

    def __init__(self) -> None:
        super().__init__()
        self.axes = SecondAxes()

    @property
    def nbytes(self) -> int:
        """Bytes of all batches of which a row is still kept."""
        batches = {id(passed): passed for passed, _ in list(self.values())}
        return sum(value.nbytes for passed in batches.values() for value in passed.tensors)

    def commit(self, slots: Slots, passed: Passed) -> None:
        """The rows in these slots are the first of a batch from now on, and in none of a stage before."""
        self.join(slots, zip(repeat(passed), range(len(slots))))

    def places_of(self, slots: Slots, stage: int) -> list[Place]:
        """The places of these rows, which must have completed `stage` last. Slots may repeat, as padding."""
        found = self.of(slots)
        if others := {passed.stage for passed, _ in found} - {stage}:  # a bug of the scheduler
            raise RuntimeError(f"stage {stage + 1}: a row comes from stage {min(others)}")
        return found

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
        """The arguments of `stage` for a batch of the rows at these places, at the lengths `longest`: copied `into` the
        given tensors, or into new memory."""
        runs, found = neighbours(places), []
        for number in range(len(runs[0][0].tensors)):
            axis = self.axes.of(stage - 1, number) if longest else ""
            pieces = [batch.tensors[number][first:end] for batch, first, end in runs]
            if axis:
                pieces = [resized(piece, longest[axis]) for piece in pieces]
            found.append(torch.cat(pieces, out=None if into is None else into[number]))
        return found
