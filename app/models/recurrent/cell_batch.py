"""A batch of rows that begin together and run by their cell. Each leaves when it ends, and the batch shrinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

State = tuple[torch.Tensor, ...]


class Begun(NamedTuple):
    """Rows before their first step: `x` [rows, length, ...], None for a cell that feeds itself; `state` [rows, ...]."""

    x: torch.Tensor | None
    state: State


class Stepped(NamedTuple):
    """Rows after a step: what it gave out [rows, ...], the next state, and which rows have ended, a bool [rows].

    After a stride: what each of its steps gave out, [steps, rows, ...], and the state behind the last.
    """

    ys: tuple[torch.Tensor, ...]
    state: State
    ended: torch.Tensor | None


class Steps(Protocol):
    """What the batch needs of a model, see `CellModel`. `shortens`: rows may end before their `x` does."""

    @property
    def finishes(self) -> bool: ...
    @property
    def shortens(self) -> bool: ...

    def keeps(self, place: int) -> bool: ...

    def longest_stride(self, rows: int, left: int) -> int: ...

    def stride(self, x: torch.Tensor | None, state: State) -> Stepped: ...


class CellBatch:
    """Rows that run together from their first step, each until it ends."""

    def __init__(self, model: Steps, begun: Begun, limits: Sequence[int]) -> None:
        self._model = model
        self._rows = len(limits)
        self.columns = max(limits) if begun.x is None or model.shortens else begun.x.shape[1]
        order = sorted(range(self._rows), key=lambda row: -limits[row])  # so that those which leave are the last
        self._limits = [limits[row] for row in order]
        self._alive = torch.tensor(order, device=begun.state[0].device)  # places in the batch
        moved = order != list(range(self._rows))
        self._x = begun.x.index_select(0, self._alive) if moved and begun.x is not None else begun.x
        self._state = tuple(value.index_select(0, self._alive) for value in begun.state) if moved else begun.state
        self._every: dict[int, torch.Tensor] = {}  # ys of every step, by their place
        #: Of rows that have left, in groups: their places, the steps they made, their last state and ys.
        self._left: list[tuple[torch.Tensor, int, State, dict[int, torch.Tensor]]] = []

    def run(self) -> tuple[State, list[torch.Tensor], torch.Tensor]:
        """What `finish` takes, of all rows in the order they came."""
        done = 0
        while self._limits:
            # As many at once as a worker makes while it serves, so that a step takes as long here.
            left = self._limits[-1] - done
            steps = 1 if self._x is None else min(left, self._model.longest_stride(len(self._limits), left))
            x = None if self._x is None else self._x[:, done : done + steps].transpose(0, 1)
            stepped = self._model.stride(x, self._state)
            self._state = stepped.state
            last = self._write(done, steps, stepped.ys)
            done += steps
            self._leave(done, last, stepped.ended)
        return self._collect()

    def _write(self, done: int, steps: int, ys: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Write what every step is wanted of; return the last of the others. `ys` [steps, rows, ...]."""
        last = {}
        for place, y in enumerate(ys):
            if not self._model.keeps(place):
                last[place] = y[-1]
                continue
            if place not in self._every:
                self._every[place] = y.new_zeros((self._rows, self.columns, *y.shape[2:]))
            self._every[place][:, done : done + steps].index_copy_(0, self._alive, y.transpose(0, 1))
        return last

    def _leave(self, done: int, last: dict[int, torch.Tensor], ended: torch.Tensor | None) -> None:
        """Take out the rows that have made all their steps, and those that have ended by themselves."""
        stay = len(self._limits)
        while stay and self._limits[stay - 1] <= done:
            stay -= 1
        flags = [] if ended is None else ended[:stay].tolist()
        go: Any = slice(stay, None)
        keep: Any = slice(stay)
        if any(flags):
            device = self._alive.device
            staying = [row for row, gone in enumerate(flags) if not gone]
            going = [row for row in range(len(self._limits)) if row >= stay or flags[row]]
            keep, go = torch.tensor(staying, device=device, dtype=torch.int64), torch.tensor(going, device=device)
            self._limits = [self._limits[row] for row in staying]
        elif stay == len(self._limits):
            return
        else:
            self._limits = self._limits[:stay]
        state = tuple(value[go] for value in self._state) if self._model.finishes else ()
        self._left.append((self._alive[go], done, state, {place: y[go] for place, y in last.items()}))
        self._alive = self._alive[keep]
        self._state = tuple(value[keep] for value in self._state)
        self._x = None if self._x is None else self._x[keep]

    def _collect(self) -> tuple[State, list[torch.Tensor], torch.Tensor]:
        places = torch.cat([left[0] for left in self._left])
        back = places.argsort()
        lengths = torch.tensor([left[1] for left in self._left for _ in left[0]], device=places.device)[back]
        state = tuple(torch.cat(parts)[back] for parts in zip(*(left[2] for left in self._left), strict=True))
        lasts = {place: torch.cat([left[3][place] for left in self._left])[back] for place in self._left[0][3]}
        ys = {**self._every, **lasts}
        return state, [ys[place] for place in sorted(ys)], lengths
