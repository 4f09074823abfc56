"""Runs a recurrent model by its cell: starts rows, makes one step, finishes rows that have ended.

A device calls `CellModel` like any other model: `forward` runs a whole batch, and rows leave as they end, so that no
row reads its padding. `begin`, `limits`, `step` and `finished` do the same in pieces, for a caller whose rows join and
leave between steps. They keep no state between calls, so several threads may call them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from app.contract import ModelInfo, TensorSpec
from app.errors import ConfigError
from app.models.base import TORCH_DTYPES, cast, normalise
from app.models.compiled import Compiled
from app.models.recurrent.recurrent import Recurrent, State, StepAxis, check_ys, kind_of, leads


class CellStart(NamedTuple):
    """Rows before their first step: `x` [rows, length, ...], None for a cell that feeds itself; `state` [rows, ...];
    `lengths` [rows], along the axis of the steps if it has a name."""

    x: torch.Tensor | None
    state: State
    lengths: torch.Tensor | None


class CellStep(NamedTuple):
    """The result of a step: its y [rows, ...], the next state, and which rows have ended, a bool [rows].

    Of a stride: the y of all its steps, [steps, rows, ...], and the state after the last.
    """

    ys: tuple[torch.Tensor, ...]
    state: State
    ended: torch.Tensor | None


class CellModel(nn.Module):
    """A recurrent model of these inputs and outputs.

    `info`: of its call, which has the length of each row as one more input. `dtype`: floating-point inputs are cast to
    it; None: they are not cast. Raises ConfigError `KEY: expected ..., got ...`, of a key of model.toml, if the tensors
    do not fit a cell; methods do so for a cell that returns something else than it declares.
    """

    _zero: torch.Tensor

    def __init__(self, declared: Recurrent, info: ModelInfo) -> None:
        super().__init__()
        self.cell: Any = declared.cell
        self.axis = StepAxis(declared, info)
        self.info = self.axis.with_lengths(info)
        self.dtype: torch.dtype | None = None
        self.declared = declared
        self._info = info
        self._step = declared.cell.step
        #: How many steps of so many rows to make in one `stride`, by an optional method of a cell, which then has that,
        #: too: 1 for most cells. `left`: steps until the first row ends. No row can join before a stride has ended.
        self.longest_stride: Callable[[int, int], int] = getattr(declared.cell, "longest_stride", _one)
        self._stride = declared.cell.stride if hasattr(declared.cell, "longest_stride") else None
        # moved and cast with the module: states of zeros are made where its weights are
        self.register_buffer("_zero", torch.zeros(()), persistent=False)

    def keeps(self, place: int) -> bool:
        """Whether `finish` takes `ys[place]` of every step, [rows, longest, ...]; else of each row's last step."""
        return self.declared.finishes or leads(self._info.outputs[place])

    def compile_step(self) -> None:
        """Compile the step with torch.compile, once for all numbers of rows."""
        if hasattr(self.cell, "packs"):
            self.cell.packs = False
        self._step = Compiled(self._step)
        self.longest_stride, self._stride = _one, None

    # a batch in pieces

    def begin(self, arguments: Sequence[Any], **keywords: Any) -> CellStart:
        """Start rows of these arguments of a call: the inputs, and the added lengths, if there are some."""
        inputs, lengths = (arguments[:-1], arguments[-1]) if self.axis.name else (arguments, None)
        rows = len(inputs[0])
        values = inputs if self.dtype is None else [cast(value, self.dtype) for value in inputs]
        if not self.declared.starts:
            state = tuple(self._zero.new_zeros((rows, *shape)) for shape in self.declared.state)
            begun = CellStart(values[0], state, lengths)
        else:
            if self.declared.wants_lengths:
                keywords["lengths"] = lengths
            result = self.cell.start(*values, **keywords)
            if not isinstance(result, tuple) or len(result) != 2:
                raise ConfigError(f"start: expected (x, state), got {kind_of(result)}")
            begun = CellStart(*result, lengths)
        self.declared.check_state("start", begun.state, rows, None)
        self.axis.check_x(begun.x, inputs, self.declared.max_steps)
        return begun

    def limits(self, begun: CellStart) -> list[int]:
        """The most steps of each row; its cell may end it earlier. Waits for a GPU that still computes the lengths."""
        rows, most = len(begun.state[0]), self.declared.max_steps
        if begun.x is None:
            assert most is not None  # see check_x
            return [most] * rows
        own: list[int] = [begun.x.shape[1]] * rows if begun.lengths is None else begun.lengths.tolist()
        return own if most is None else [min(length, most) for length in own]

    def step(self, x: torch.Tensor | None, state: State) -> CellStep:
        """One step of rows, which may be at different steps: `x` [rows, ...] is the input of each."""
        result = self._step(x, state)
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise ConfigError(f"step: expected (y, state) or (y, state, ended), got {kind_of(result)}")
        y, after = result[:2]
        rows = len(state[0])
        self.declared.check_state("step", after, rows, state)
        ended = result[2] if len(result) == 3 else None
        if ended is not None:
            self.axis.check_ended(ended, rows)
        return CellStep(self._given_out(y, (rows,)), after, ended)

    def stride(self, x: torch.Tensor | None, state: State) -> CellStep:
        """Several steps of all rows, at most `longest_stride` of them: `x` and `ys` [steps, rows, ...].

        One step for a cell that feeds itself, whose `x` is None.
        """
        if self._stride is None or x is None:
            stepped = self.step(None if x is None else x[0], state)
            return stepped._replace(ys=tuple(y[None] for y in stepped.ys))
        y, after = self._stride(x, state)
        self.declared.check_state("stride", after, x.shape[1], state)
        return CellStep(self._given_out(y, tuple(x.shape[:2])), after, None)

    # a whole batch

    def forward(self, *inputs: Any, **keywords: Any) -> list[torch.Tensor]:
        """All inputs, the added lengths last -> the outputs, see `finished`."""
        return self.whole(*inputs, **keywords)[0]

    def whole(self, *inputs: Any, **keywords: Any) -> tuple[list[torch.Tensor], int]:
        """As `forward`, and the number of steps that the longest row made.

        Outputs with an axis of their own are padded to the most steps, so that they do not depend on the batch.
        """
        begun = self.begin(inputs, **keywords)
        limits = self.limits(begun)
        columns = max(limits) if begun.x is None or self.axis.shortens else begun.x.shape[1]
        state, ys, made = run_together(self, begun, limits, columns)
        return self.finished(state, ys, made, self.axis.most or columns), int(made.max())

    def finished(
        self, state: State, ys: Sequence[torch.Tensor], lengths: torch.Tensor, columns: int
    ) -> list[torch.Tensor]:
        """The outputs of rows that have ended, after `lengths` steps (INT64 [rows]). `ys`: see `keeps`.

        Outputs along the steps are as long as `ys`; values beyond a row's own steps are undefined. Those with an axis
        of their own are padded to `columns`, and `lengths` follow the outputs.
        """
        result: Any = ys
        if self.declared.finishes:
            result = self.cell.finish(state, None if not ys else ys[0] if len(ys) == 1 else tuple(ys), lengths)
        values = normalise(result, self._info.outputs)
        if self.dtype is not None:
            both = zip(self._info.outputs, values, strict=True)
            values = [cast(value, TORCH_DTYPES[spec.datatype]) for spec, value in both]
        if not any(self.axis.own):
            return values
        ends = lengths if self.declared.finishes else None  # without `finish`, zeros follow already
        outputs = [
            _padded(spec, value, columns, ends) if own else value
            for spec, value, own in zip(self._info.outputs, values, self.axis.own, strict=True)
        ]
        return [*outputs, lengths]

    def _given_out(self, y: Any, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """The y of a step as a tuple, checked. `shape`: [rows], or [steps, rows]."""
        ys = tuple(normalise(y, self._info.outputs)) if not self.declared.finishes else _flat(y)
        check_ys(ys, shape)
        return ys


def _one(rows: int, left: int) -> int:
    return 1


def _flat(y: Any) -> tuple[Any, ...]:
    return () if y is None else tuple(y) if isinstance(y, (tuple, list)) else (y,)


def _padded(spec: TensorSpec, value: torch.Tensor, most: int, ends: torch.Tensor | None) -> torch.Tensor:
    """[rows, steps, ...] with zeros up to `most` steps, so that its length does not depend on the batch.

    `ends`: where each row's own steps end; None if zeros follow them already.
    """
    steps = value.shape[1]
    if steps > most:
        raise ConfigError(f"output {spec.name!r}: expected at most {most} steps, got {steps}")
    if ends is not None:
        beyond = torch.arange(steps, device=value.device) >= ends[:, None]
        value = torch.where(beyond.view(*beyond.shape, *[1] * (value.ndim - 2)), value.new_zeros(()), value)
    if steps == most:
        return value
    return torch.cat([value, value.new_zeros((len(value), most - steps, *value.shape[2:]))], 1)


def run_together(
    model: CellModel, begun: CellStart, limits: Sequence[int], columns: int
) -> tuple[State, list[torch.Tensor], torch.Tensor]:
    """Run rows together from their first step, each until it ends. Returns the arguments of `finished`.

    The ys of every step have so many `columns`.
    """
    going = list(range(len(limits)))
    alive = torch.tensor(going, device=begun.state[0].device)
    x, state, made = begun.x, begun.state, 0
    last = tuple(value.new_empty(value.shape) for value in state)
    ys: dict[int, torch.Tensor] = {}
    lengths = [0] * len(limits)
    while going:
        # as many steps in one call as when serving, so that a step takes the same time here
        left = min(limits[row] for row in going) - made
        steps = 1 if x is None else min(left, model.longest_stride(len(going), left))
        stepped = model.stride(None if x is None else x[:, made : made + steps].transpose(0, 1), state)
        state = stepped.state
        flags = [False] * len(going) if stepped.ended is None else stepped.ended.tolist()
        for place, y in enumerate(stepped.ys):
            every = model.keeps(place)
            if place not in ys:
                ys[place] = y.new_zeros((len(limits), *([columns] if every else []), *y.shape[2:]))
            if every:
                ys[place][:, made : made + steps].index_copy_(0, alive, y.transpose(0, 1))
        made += steps
        staying = [at for at, row in enumerate(going) if not flags[at] and made < limits[row]]
        if len(staying) == len(going):
            continue
        lasts = [(ys[place], y[-1]) for place, y in enumerate(stepped.ys) if not model.keeps(place)]
        for values, value in (*zip(last, state, strict=True), *lasts):
            values.index_copy_(0, alive, value)
        for row in going:
            lengths[row] = made
        going = [going[at] for at in staying]
        stay = torch.tensor(staying, dtype=torch.int64, device=alive.device)
        alive, state = alive[stay], tuple(value[stay] for value in state)
        x = None if x is None else x[stay]
    return last, list(ys.values()), torch.tensor(lengths, device=alive.device)
