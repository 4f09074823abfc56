"""The memory of a recurrent model's rows between two units: their inputs, their state and their outputs so far.

Inputs and outputs are in `StepSlabs`. A row takes a place there when it begins and gives it back when it ends. The last
place given back is used first, so that few pages are ever written: the system assigns memory only to those. Rows longer
than a slab, or for which no place is free, have memory of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from app.engine.executor import Kept
from app.engine.pool import Place, Slots, indices, pageable, rows_at
from app.engine.step_slabs import FirstStep, StepSlabs
from app.models.recurrent.recurrent import State

_SLAB_BYTES = 1 << 30  # of address space; only written pages take memory


@dataclass(slots=True, eq=False)
class CellRow:
    """A row that has begun: `done` of at most `limit` steps, in a place of some slabs. `state`: after its last step."""

    limit: int
    slabs: StepSlabs
    place: int
    done: int = 0
    state: Place = ((), 0)


class CellRows(Kept[CellRow]):
    """Of one placed model. `places`: the most rows in slabs that they share; none if steps are unbounded.

    `first`: of some row, for shapes and types.
    """

    def __init__(self, places: int, first: FirstStep) -> None:
        super().__init__()
        self._first = first
        row = first.longest * first.step_bytes
        places = min(places, _SLAB_BYTES // row) if row else 0
        self.row_bytes = 2 * (row + sum(value[:1].nbytes for value in first.stepped.state))  # before and after a step
        self._free = list(reversed(range(places)))
        self._slabs = StepSlabs(places, first.longest, first, pageable)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that have begun."""
        rows = list(self.values())
        states = {id(state): state for state, _ in (row.state for row in rows)}
        taken = sum(value.nbytes for state in states.values() for value in state)
        return taken + sum(row.slabs.row_bytes for row in rows)

    def begin(self, slots: Slots, x: torch.Tensor | None, state: State, limits: Sequence[int]) -> None:
        """Begin rows: store their inputs `x` [rows, length, ...], if any, and their first state. If this raises, no row
        has begun and no place is taken."""
        rows: list[CellRow] = []
        try:
            rows.extend(map(self._placed, limits))
            if x is not None:
                for row, values in zip(rows, x, strict=True):
                    row.slabs.fill(indices([row.place]), values[None])
        except BaseException:
            for row in rows:
                self._left(row)
            raise
        self.keep_state(rows, tuple(value.clone() for value in state))
        self.join(slots, rows)
        own = max((row.slabs.row_bytes for row in rows if row.slabs is not self._slabs), default=0)
        self.row_bytes = max(self.row_bytes, own and 2 * (own + sum(value.nbytes for value in state) // len(rows)))

    def _placed(self, limit: int) -> CellRow:
        """A row of so many steps, in memory of its own if it is too long or no place is free."""
        if limit <= self._slabs.steps:
            with suppress(IndexError):  # another worker may have taken the last one just now
                return CellRow(limit, self._slabs, self._free.pop())
        return CellRow(limit, StepSlabs(1, limit, self._first, pageable), 0)

    def keep_state(self, rows: Sequence[CellRow], state: State) -> None:
        """Keep the state of these rows between two steps, which must be a copy."""
        for position, row in enumerate(rows):
            row.state = state, position

    def state(self, rows: Sequence[CellRow]) -> State:
        """A copy of the state of these rows: a cell may write into it, and the unit may have to run again."""
        return tuple(rows_at([row.state for row in rows]))

    def steps_at(self, rows: Sequence[CellRow]) -> torch.Tensor | None:
        """The index of each row's next step in the shared slabs; None if a row has memory of its own."""
        if any(row.slabs is not self._slabs for row in rows):
            return None
        steps = self._slabs.steps
        return indices([row.place * steps + row.done for row in rows])

    @property
    def reads(self) -> bool:
        """Whether the cell reads inputs; False for a cell that only feeds itself."""
        return self._slabs.x is not None

    def read(self, rows: Sequence[CellRow], at: torch.Tensor | None, made: int, steps: int) -> torch.Tensor | None:
        """The inputs of the next `steps` steps, [steps, rows, ...]. `made`: steps made since `row.done` was updated."""
        if at is not None:
            values = self._slabs.read(_following(at, steps))
            return None if values is None else values.view(steps, len(rows), *values.shape[1:])
        own = [row.slabs.x[row.place, row.done + made :][:steps] for row in rows if row.slabs.x is not None]
        return torch.stack(own, 1) if own else None

    def write(self, rows: Sequence[CellRow], at: torch.Tensor | None, made: int, output: int, y: torch.Tensor) -> None:
        """Store one output of these steps, [steps, rows, ...], if all steps of it are wanted."""
        if at is not None:
            self._slabs.write(output, _following(at, len(y)), y.flatten(0, 1))
            return
        for row, value in zip(rows, y.unbind(1), strict=True):
            row.slabs.ys[output][row.place, row.done + made :][: len(value)] = value

    def written(self, rows: Sequence[CellRow], output: int, lengths: Sequence[int]) -> torch.Tensor:
        """The whole output of these rows, [rows, longest, ...], with zeros beyond the `lengths` of shorter ones."""
        first = rows[0].slabs.ys[output]
        batch = first.new_zeros((len(rows), max(lengths), *first.shape[2:]))
        for into, row, length in zip(batch, rows, lengths, strict=True):
            into[:length] = row.slabs.ys[output][row.place, :length]
        return batch

    def _left(self, row: CellRow) -> None:
        if row.slabs is self._slabs:
            self._free.append(row.place)


def _following(at: torch.Tensor, steps: int) -> torch.Tensor:
    """These flat indices and those of the following steps, `steps` in all: [steps x rows]."""
    return at if steps == 1 else (at + torch.arange(steps)[:, None]).view(-1)
