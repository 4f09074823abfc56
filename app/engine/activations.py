"""The tensors of rows between two stages of a model: for each row, the batch that returned them and its position there.

A unit whose rows are neighbours in one batch reads a view of it; other rows are gathered. A batch's memory is freed
when its last row has continued, ended or been released.

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
from app.engine.tensors import indices, neighbours
from app.models.stages.staged import SecondAxes, resized


@dataclass(slots=True, eq=False)
class Passed:
    """The result of one batch at `stage`: tensors [rows, ...], the batch's lengths, and its context."""

    stage: int
    tensors: tuple[torch.Tensor, ...]
    longest: Mapping[str, int]
    context: Sequence[torch.Tensor]


Place = tuple[Passed, int]
Neighbours = tuple[Passed, int, int]  # rows from the second number up to the third


class Activations(Kept[Place]):
    """Of one placed model."""

    def __init__(self) -> None:
        super().__init__()
        self.axes = SecondAxes()

    @property
    def nbytes(self) -> int:
        """Bytes of all batches of which a row is still kept."""
        batches = {id(passed): passed for passed, _ in list(self._rows.values())}
        return sum(value.nbytes for passed in batches.values() for value in (*passed.tensors, *passed.context))

    def commit(self, slots: Slots, passed: Passed, positions: Sequence[int]) -> None:
        """The rows in these slots are at these positions of a batch from now on, and in none of a stage before."""
        self.join(slots, zip(repeat(passed), positions))

    def places_of(self, slots: Slots, stage: int) -> list[Place]:
        """The places of these rows, which must have completed `stage` last."""
        found = []
        for slot in slots:
            place = self.get(slot)
            if place is None or place[0].stage != stage:  # a bug of the scheduler
                where = "has not begun" if place is None else f"comes from stage {place[0].stage}"
                raise RuntimeError(f"stage {stage + 1}: a row {where}")
            found.append(place)
        return found

    def learn(
        self, stage: int, tensors: Sequence[torch.Tensor], longest: Mapping[str, int], context: Sequence[torch.Tensor]
    ) -> None:
        """Learn from a result of `stage` which tensors are as long as the batch, and how much memory a row takes.

        If two workers do so at once, the smaller size may be kept; the next large batch corrects that.
        """
        if longest:
            self.axes.learn(stage, tensors, longest)
        taken = sum(value.nbytes for value in (*tensors, *context))
        self.row_bytes = max(self.row_bytes, -(-2 * taken // len(tensors[0])))  # a stage's input, and its result

    def gather(self, rows: Sequence[int], stage: int, longest: Mapping[str, int]) -> tuple[list[torch.Tensor], bool]:
        """The arguments of `stage` for a batch of the rows in these slots, at the lengths `longest`.

        Also whether they are copies and not views of what is kept. Slots may repeat, as padding.
        """
        places = self.places_of(rows, stage - 1)
        passed = places[0][0]
        runs = neighbours(places)
        if len(runs) == 1:
            _, first, end = runs[0]
            views = passed.tensors
            if end - first != len(views[0]):
                views = tuple(tensor[first:end] for tensor in views)
            return [self._fitted(view, stage, number, longest) for number, view in enumerate(views)], False
        if all(run[0] is passed for run in runs):
            index = indices([position for _, position in places])
            chosen = [tensor.index_select(0, index) for tensor in passed.tensors]
            return [self._fitted(rows, stage, number, longest) for number, rows in enumerate(chosen)], True
        return self.joined(runs, stage, longest), True

    def joined(
        self,
        runs: Sequence[Neighbours],
        stage: int,
        longest: Mapping[str, int],
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """As `gather`, for rows at these places: copied `into` the given tensors, or into new memory."""
        found = []
        for number in range(len(runs[0][0].tensors)):
            pieces = (batch.tensors[number][first:end] for batch, first, end in runs)
            fitted = [self._fitted(piece, stage, number, longest) for piece in pieces]
            found.append(torch.cat(fitted, out=None if into is None else into[number]))
        return found

    def _fitted(self, rows: torch.Tensor, stage: int, number: int, longest: Mapping[str, int]) -> torch.Tensor:
        """Rows cut or padded to the length of the batch, if the tensor has such an axis."""
        axis = self.axes.of(stage - 1, number) if longest else ""
        return resized(rows, longest[axis]) if axis else rows

    def context(self, rows: Sequence[int], longest: Mapping[str, int]) -> Sequence[torch.Tensor] | None:
        """The context of the batch that these rows were in, if they are still exactly that batch; else None."""
        passed = self._rows[rows[0]][0]
        same = len(rows) == len(passed.tensors[0]) and dict(passed.longest) == dict(longest)
        unchanged = same and all(self._rows[row] == (passed, place) for place, row in enumerate(rows))
        return passed.context if unchanged else None
