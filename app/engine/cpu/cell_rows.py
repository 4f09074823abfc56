"""The memory of a recurrent model's rows between two steps: their inputs, their state and their outputs so far.

The state is kept as `Activations` keeps tensors between stages. The inputs and outputs of all steps are in slabs,
[places, steps, ...], so that rows at different steps can be read and written in one operation. A row takes a place when
it begins and gives it back when it ends. The last place given back is used first, so that few pages are ever written,
and the system assigns memory only to pages that are written. Rows longer than a slab, or for which no place is free,
have memory of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from app.engine.activations import Activations, Passed
from app.engine.pool import Slots
from app.engine.tensors import indices, pad_beyond

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


class Slab:
    """`places` x `steps` values of one shape."""

    def __init__(self, places: int, steps: int, like: torch.Tensor) -> None:
        """`like`: the values of one step of some rows, [rows, ...]."""
        self.values = like.new_empty((places, steps, *like.shape[1:]))
        self.flat = self.values.view(places * steps, *like.shape[1:])
        self.row_bytes = self.values[:1].nbytes

    def fill(self, places: Sequence[int], x: torch.Tensor) -> None:
        """Store values [rows, steps, ...] of new rows at these places."""
        length = min(x.shape[1], self.values.shape[1])
        if len(places) == 1:
            self.values[places[0], :length] = x[0, :length]
        else:
            self.values[:, :length].index_copy_(0, indices(places), x[:, :length])


class CellRows(Activations):
    """Of one placed model. Worker threads begin and continue rows, each its own; the event loop releases them."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[int, CellRow] = {}  # by slot
        self._free: list[int] = []
        self._steps = 0  # of each place
        self._step_bytes = 0  # of what a row reads and gives out at a step
        self._x: Slab | None = None
        self._ys: dict[int, Slab] = {}  # by output

    def reserve(self, places: int, steps: int, x: torch.Tensor | None, ys: Mapping[int, torch.Tensor]) -> None:
        """Allocate slabs. Called before serving, with the input `x` and outputs `ys` of one step of some rows.

        `steps`: the most steps of a row; 0: unbounded, then each row has memory of its own.
        """
        values = [*([] if x is None else [x]), *ys.values()]
        self._step_bytes = sum(prod(value.shape[1:]) * value.element_size() for value in values)
        row = steps * self._step_bytes
        self.row_bytes += row
        places = min(places, _SLAB_BYTES // row) if row else 0
        self._free = list(reversed(range(places)))
        self._steps = steps
        self._x = None if x is None or not places else Slab(places, steps, x)
        self._ys = {output: Slab(places, steps, value) for output, value in ys.items()} if places else {}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that have begun, their places in the slabs included."""
        slabs = [*self._ys.values(), *([] if self._x is None else [self._x])]
        return super().nbytes + len(self._rows) * sum(slab.row_bytes for slab in slabs)

    def missing(self, slots: Slots) -> list[int]:
        """Those of these slots whose rows have not begun."""
        return [slot for slot in slots if slot not in self._rows]

    def begin(self, slots: Slots, x: torch.Tensor | None, state: Sequence[torch.Tensor], limits: Sequence[int]) -> None:
        """Begin rows: store their inputs `x` [rows, length, ...], if any, and their first state. If this raises, no row
        has begun and no place is taken."""
        begun = [(slot, CellRow(limit, self._take(limit))) for slot, limit in zip(slots, limits, strict=True)]
        try:
            if x is not None:
                self._copy([row for _, row in begun], x)
        except BaseException:
            self._free.extend(row.place for _, row in begun if row.place >= 0)
            raise
        self.keep_state(slots, range(len(begun)), tuple(state))
        self._rows.update(begun)
        longest = max((row.limit for _, row in begun if row.place < 0), default=0)
        if longest > self._steps:
            taken = sum(value.nbytes for value in state) // len(begun) + longest * self._step_bytes
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
        if placed and self._x is not None:
            self._x.fill([rows[position].place for position in placed], x if len(placed) == len(rows) else x[placed])

    def rows_of(self, slots: Slots) -> list[CellRow]:
        return [self._rows[slot] for slot in slots]

    def keep_state(self, slots: Slots, positions: Sequence[int], state: tuple[torch.Tensor, ...]) -> None:
        """Keep the state of these rows between two steps: they are at `positions` of `state`."""
        self.commit(slots, Passed(_STATE, state, {}, ()), positions)

    def state(self, slots: Slots) -> tuple[torch.Tensor, ...]:
        """A copy of the state of these rows: a cell may write into it, and the unit may have to run again."""
        state, own = self.gather(slots, _STATE + 1, {})
        return tuple(state if own else (value.clone() for value in state))

    def places(self, rows: Sequence[CellRow]) -> torch.Tensor | None:
        """The index of each row's next step in the flat slabs; None if a row has memory of its own."""
        if any(row.place < 0 for row in rows):
            return None
        steps = self._steps
        return indices([row.place * steps + row.done for row in rows])

    def reads(self, rows: Sequence[CellRow]) -> bool:
        """Whether the cell reads inputs; False for a cell that only feeds itself."""
        return self._x is not None or rows[0].x is not None

    def read(self, rows: Sequence[CellRow], at: torch.Tensor | None, made: int, steps: int = 1) -> torch.Tensor | None:
        """The inputs of the next `steps` steps, [steps, rows, ...]. `made`: steps made since `row.done` was updated."""
        if not self.reads(rows):
            return None
        if at is not None and self._x is not None:
            values = self._x.flat.index_select(0, _following(at, steps))
            return values.view(steps, len(rows), *values.shape[1:])
        own = (row.x if row.x is not None or self._x is None else self._x.values[row.place] for row in rows)
        return torch.stack(
            [value[row.done + made :][:steps] for value, row in zip(own, rows, strict=True) if value is not None], 1
        )

    def write(self, rows: Sequence[CellRow], at: torch.Tensor | None, made: int, output: int, y: torch.Tensor) -> None:
        """Store one output of these steps, [steps, rows, ...], if all steps of it are wanted."""
        slab = self._ys.get(output)
        if at is not None and slab is not None:
            slab.flat.index_copy_(0, _following(at, len(y)), y.flatten(0, 1))
            return
        for row, value in zip(rows, y.unbind(1), strict=True):
            own = slab.values[row.place] if slab is not None and row.place >= 0 else row.ys.get(output)
            if own is None:
                own = row.ys[output] = value.new_empty((row.limit, *value.shape[1:]))
            own[row.done + made :][: len(value)] = value

    def written(self, rows: Sequence[CellRow], output: int, steps: int) -> torch.Tensor:
        """The whole output of these rows, [rows, steps, ...], with zeros beyond a row's own steps."""
        slab = self._ys.get(output)
        if slab is not None and all(row.place >= 0 for row in rows):
            batch = slab.values[:, :steps].index_select(0, indices([row.place for row in rows]))
            if any(row.done < steps for row in rows):  # an earlier row's values may still be there
                pad_beyond(batch, 1, indices([row.done for row in rows]), 0)
            return batch
        values = [slab.values[row.place] if slab is not None and row.place >= 0 else row.ys[output] for row in rows]
        batch = values[0].new_zeros((len(rows), steps, *values[0].shape[1:]))
        for into, value, row in zip(batch, values, rows, strict=True):
            into[: row.done] = value[: row.done]
        return batch

    def release(self, slots: Slots) -> None:
        for slot in slots:
            row = self._rows.pop(slot, None)
            if row is not None and row.place >= 0:
                self._free.append(row.place)
        super().release(slots)


def _following(at: torch.Tensor, steps: int) -> torch.Tensor:
    """These flat indices and those of the following steps, `steps` in all: [steps x rows]."""
    return at if steps == 1 else (at + torch.arange(steps)[:, None]).view(-1)
