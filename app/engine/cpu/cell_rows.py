"""The memory of a recurrent model's rows between two units: their inputs, their state and their outputs so far.

The state is kept as `Activations` keeps tensors between stages, the rest in `StepSlabs`. A row takes a place in the
slabs when it begins and gives it back when it ends. The last place given back is used first, so that few pages are ever
written: the system assigns memory only to those. Rows longer than a slab, or for which no place is free, have memory of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from app.engine.activations import Activations, Passed
from app.engine.kept import Rows
from app.engine.pool import Slots, pageable
from app.engine.step_slabs import StepSlabs, step_bytes
from app.engine.tensors import indices

_STATE = -1  # in place of the stage that passes it on
_SLAB_BYTES = 1 << 30  # of address space; only written pages take memory


@dataclass(slots=True, eq=False)
class CellRow:
    """A row that has begun: `done` of at most `limit` steps. `place` in the slabs, or tensors of its own."""

    limit: int
    place: int = -1
    done: int = 0
    x: torch.Tensor | None = None  # [limit, ...]
    ys: dict[int, torch.Tensor] = field(default_factory=dict)


class CellRows(Rows[CellRow]):
    """Of one placed model."""

    copies = 2  # the state before and after a step

    def __init__(self) -> None:
        super().__init__()
        self._states = Activations()
        self._free: list[int] = []
        self._steps = 0  # of each place
        self._step_bytes = 0  # of what a row reads and gives out at a step
        self._slabs: StepSlabs | None = None

    def reserve(self, places: int, steps: int, x: torch.Tensor | None, ys: Mapping[int, torch.Tensor]) -> None:
        """Allocate slabs. Called before serving, with the input `x` and outputs `ys` of one step of some rows.

        `steps`: the most steps of a row; 0: unbounded, then each row has memory of its own.
        """
        self._step_bytes = step_bytes([*([] if x is None else [x]), *ys.values()])
        row = steps * self._step_bytes
        self.row_bytes += row
        places = min(places, _SLAB_BYTES // row) if row else 0
        self._free = list(reversed(range(places)))
        self._steps = steps
        if places:
            self._slabs = StepSlabs(places, steps, x, ys, pageable)
            self.place_bytes = self._slabs.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that have begun, their places in the slabs included."""
        return super().nbytes + self._states.nbytes

    def begin(self, slots: Slots, x: torch.Tensor | None, state: Sequence[torch.Tensor], limits: Sequence[int]) -> None:
        """Begin rows: store their inputs `x` [rows, length, ...], if any, and their first state. If this raises, no row
        has begun and no place is taken."""
        rows = [CellRow(limit, self._take(limit)) for limit in limits]
        try:
            if x is not None:
                self._copy(rows, x)
        except BaseException:
            self._free.extend(row.place for row in rows if row.place >= 0)
            raise
        self.keep_state(slots, range(len(rows)), tuple(state))
        self.join(slots, rows)
        longest = max((row.limit for row in rows if row.place < 0), default=0)
        if longest > self._steps:
            taken = sum(value.nbytes for value in state) // len(rows) + longest * self._step_bytes
            self.row_bytes = max(self.row_bytes, taken)

    def _take(self, steps: int) -> int:
        """A place for a row of so many steps; -1 if it is too long or no place is free."""
        try:
            return self._free.pop() if steps <= self._steps else -1
        except IndexError:  # another worker may have taken the last one just now
            return -1

    def _copy(self, rows: Sequence[CellRow], x: torch.Tensor) -> None:
        """Copy the inputs of these rows into their places, or into memory of their own."""
        placed = [position for position, row in enumerate(rows) if row.place >= 0]
        for row, own in zip(rows, x, strict=True):
            if row.place < 0:
                row.x = own[: row.limit].clone()
        if placed and self._slabs is not None:
            places = indices([rows[position].place for position in placed])
            self._slabs.fill(places, x if len(placed) == len(rows) else x[placed])

    def keep_state(self, slots: Slots, positions: Sequence[int], state: tuple[torch.Tensor, ...]) -> None:
        """Keep the state of these rows between two steps: they are at `positions` of `state`."""
        self._states.commit(slots, Passed(_STATE, state, {}, ()), positions)

    def state(self, slots: Slots) -> tuple[torch.Tensor, ...]:
        """A copy of the state of these rows: a cell may write into it, and the unit may have to run again."""
        state, own = self._states.gather(slots, _STATE + 1, {})
        return tuple(state if own else (value.clone() for value in state))

    def steps_at(self, rows: Sequence[CellRow]) -> torch.Tensor | None:
        """The index of each row's next step in the flat slabs; None if a row has memory of its own."""
        if any(row.place < 0 for row in rows):
            return None
        steps = self._steps
        return indices([row.place * steps + row.done for row in rows])

    def reads(self, rows: Sequence[CellRow]) -> bool:
        """Whether the cell reads inputs; False for a cell that only feeds itself."""
        return (self._slabs is not None and self._slabs.x is not None) or rows[0].x is not None

    def read(self, rows: Sequence[CellRow], at: torch.Tensor | None, made: int, steps: int = 1) -> torch.Tensor | None:
        """The inputs of the next `steps` steps, [steps, rows, ...]. `made`: steps made since `row.done` was updated."""
        if not self.reads(rows):
            return None
        slab = None if self._slabs is None else self._slabs.x
        if at is not None and self._slabs is not None:
            values = self._slabs.read(_following(at, steps))
            return None if values is None else values.view(steps, len(rows), *values.shape[1:])
        own = (row.x if row.x is not None or slab is None else slab[row.place] for row in rows)
        return torch.stack(
            [value[row.done + made :][:steps] for value, row in zip(own, rows, strict=True) if value is not None], 1
        )

    def write(self, rows: Sequence[CellRow], at: torch.Tensor | None, made: int, output: int, y: torch.Tensor) -> None:
        """Store one output of these steps, [steps, rows, ...], if all steps of it are wanted."""
        if at is not None and self._slabs is not None:
            self._slabs.write(output, _following(at, len(y)), y.flatten(0, 1))
            return
        for row, value in zip(rows, y.unbind(1), strict=True):
            if (self._slabs is None or row.place < 0) and output not in row.ys:
                row.ys[output] = value.new_empty((row.limit, *value.shape[1:]))
            self._own(row, output)[row.done + made :][: len(value)] = value

    def written(self, rows: Sequence[CellRow], output: int, lengths: Sequence[int]) -> torch.Tensor:
        """The whole output of these rows, [rows, longest, ...], with zeros beyond the `lengths` of shorter ones."""
        steps = max(lengths)
        if self._slabs is not None and all(row.place >= 0 for row in rows):
            beyond = None if min(lengths) == steps else indices(lengths)
            return self._slabs.written(output, indices([row.place for row in rows]), steps, beyond)
        values = [self._own(row, output) for row in rows]
        batch = values[0].new_zeros((len(rows), steps, *values[0].shape[1:]))
        for into, value, length in zip(batch, values, lengths, strict=True):
            into[:length] = value[:length]
        return batch

    def _own(self, row: CellRow, output: int) -> torch.Tensor:
        """All steps of an output of a row, in the slab or in memory of its own."""
        slabs = self._slabs
        return slabs.ys[output][row.place] if slabs is not None and row.place >= 0 else row.ys[output]

    def release(self, slots: Slots) -> None:
        super().release(slots)
        self._states.release(slots)

    def _left(self, row: CellRow) -> None:
        if row.place >= 0:
            self._free.append(row.place)


def _following(at: torch.Tensor, steps: int) -> torch.Tensor:
    """These flat indices and those of the following steps, `steps` in all: [steps x rows]."""
    return at if steps == 1 else (at + torch.arange(steps)[:, None]).view(-1)
