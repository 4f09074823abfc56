"""Runs a recurrent model by its cell: starts rows, makes one step, finishes rows that have ended.

`CellModel` is what a device calls like any other model: `forward` runs a whole batch, and its rows leave as they end,
so that no row reads its padding. `begin`, `limits`, `step` and `finish` are the same work in pieces, for a caller that
has rows join and leave between steps. They keep nothing between calls, so several threads may use them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from app.contract import ModelInfo, TensorSpec
from app.errors import ConfigError
from app.models.base import TORCH_DTYPES, normalise
from app.models.recurrent.cell_batch import Begun, CellBatch, State, Stepped
from app.models.recurrent.cell_specs import StepAxis, leads, step_axis, with_lengths
from app.models.recurrent.recurrent import Recurrent
from app.models.sources.compiled import Compiled


class CellModel(nn.Module):
    """A recurrent model of these inputs and outputs. Make it with `recurrent_model`.

    `dtype` is what floating-point values are computed in, None where they stay as they come. What it raises itself is
    ConfigError: a cell that does something else than it declares.
    """

    _zero: torch.Tensor

    def __init__(self, declared: Recurrent, info: ModelInfo, axis: StepAxis) -> None:
        super().__init__()
        self.cell: Any = declared.cell
        self.axis = axis
        self.dtype: torch.dtype | None = None
        self._declared = declared
        self._info = info
        self._wants_lengths = declared.wants_lengths
        self._step = declared.cell.step
        #: How many steps of so many rows the cell makes at once, of one that can; then it has `stride` too.
        self._longest_stride = getattr(declared.cell, "longest_stride", None)
        self._stride = None if self._longest_stride is None else declared.cell.stride
        # moved and cast with the module: states of zeros are made where its weights are
        self.register_buffer("_zero", torch.zeros(()), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where states of zeros are made, and its weights are."""
        return self._zero.device

    @property
    def starts(self) -> bool:
        """Whether `start` makes what the cell reads of the inputs."""
        return self._declared.starts

    @property
    def movable(self) -> bool:
        """Whether its weights can be moved to another device: those of an nn.Module can."""
        return isinstance(self.cell, nn.Module)

    @property
    def finishes(self) -> bool:
        """Whether `finish` reads the last states, and all `ys` of every step."""
        return self._declared.finishes

    @property
    def shortens(self) -> bool:
        """Whether `max_steps` may end rows before their length; then no output is as long as its input."""
        return self.axis.shortens

    def keeps(self, place: int) -> bool:
        """Whether `finish` wants `ys[place]` of every step, [rows, longest, ...]; if not, of each row's last."""
        return self.finishes or leads(self._info.outputs[place])

    def compile_step(self) -> None:
        """Have torch compile the step, once for all numbers of rows."""
        if hasattr(self.cell, "packs"):
            self.cell.packs = False
        self._step = Compiled(self._step)
        self._longest_stride = self._stride = None

    def taken(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], torch.Tensor | None]:
        """What the model is called with, as `begin` takes it: the lengths apart, which come last."""
        return (inputs[:-1], inputs[-1]) if self.axis.name else (inputs, None)

    # a batch in pieces

    def begin(self, inputs: Sequence[Any], lengths: torch.Tensor | None, **keywords: Any) -> Begun:
        """Rows of the inputs as declared, batch first; `lengths` [rows] along `axis`, None if it has no name."""
        rows = len(inputs[0])
        values = [self._cast(value) for value in inputs]
        if not self._declared.starts:
            begun = Begun(values[0], tuple(self._zero.new_zeros((rows, *shape)) for shape in self._declared.state))
        else:
            if self._wants_lengths:
                keywords["lengths"] = lengths
            result = self.cell.start(*values, **keywords)
            if not isinstance(result, tuple) or len(result) != 2:
                raise ConfigError(f"start: expected (x, state), got {_kind(result)}")
            begun = Begun(*result)
        self._check_state("start", begun.state, rows, None)
        self._check_x(begun.x, inputs)
        return begun

    def limits(self, begun: Begun, lengths: torch.Tensor | None) -> list[int]:
        """How many steps each row makes unless its cell ends it before. `lengths` [rows] along `axis`, if named.

        Waits for a GPU that still computes them.
        """
        rows, most = len(begun.state[0]), self._declared.max_steps
        if begun.x is None:
            assert most is not None  # see _check_x
            return [most] * rows
        own: list[int] = [begun.x.shape[1]] * rows if lengths is None else lengths.tolist()
        return own if most is None else [min(length, most) for length in own]

    def step(self, x: torch.Tensor | None, state: State) -> Stepped:
        """One step of rows that may be at different ones: `x` [rows, ...] is what each of them reads."""
        result = self._step(x, state)
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise ConfigError(f"step: expected (y, state) or (y, state, ended), got {_kind(result)}")
        y, after = result[:2]
        rows = len(state[0])
        self._check_state("step", after, rows, state)
        ended = result[2] if len(result) == 3 else None
        if ended is not None:
            self._check_ended(ended, rows)
        return Stepped(self._given_out(y, (rows,)), after, ended)

    def longest_stride(self, rows: int, left: int) -> int:
        """How many steps of so many rows to make in one `stride`: 1 for most cells, which make one after another.

        `left`: steps until the first of them ends. No row can join before a stride has ended.
        """
        return 1 if self._longest_stride is None else int(self._longest_stride(rows, left))

    def stride(self, x: torch.Tensor | None, state: State) -> Stepped:
        """Steps of rows that all make them, at most as many as `longest_stride` says: `x` and `ys` [steps, rows, ...].

        One step of a cell that feeds itself, for which `x` is None.
        """
        if self._stride is None or x is None:
            stepped = self.step(None if x is None else x[0], state)
            return stepped._replace(ys=tuple(y[None] for y in stepped.ys))
        y, after = self._stride(x, state)
        self._check_state("stride", after, x.shape[1], state)
        return Stepped(self._given_out(y, tuple(x.shape[:2])), after, None)

    def finish(self, state: State, ys: Sequence[torch.Tensor], lengths: torch.Tensor) -> list[torch.Tensor]:
        """The outputs of rows that have ended, after `lengths` steps (INT64 [rows]). `ys` as `keeps` says.

        Outputs along the steps are as long as `ys`; what is beyond a row's own steps means nothing.
        """
        result: Any = ys
        if self.finishes:
            result = self.cell.finish(state, None if not ys else ys[0] if len(ys) == 1 else tuple(ys), lengths)
        values = normalise(result, self._info.outputs, self._info.name)
        if self.dtype is None:
            return values
        return [_as(value, TORCH_DTYPES[spec.datatype]) for spec, value in zip(self._info.outputs, values, strict=True)]

    # a whole batch

    def forward(self, *inputs: Any, **keywords: Any) -> list[torch.Tensor]:
        """All inputs, the added lengths last -> the outputs, as `finished` has them."""
        return self.whole(*inputs, **keywords)[0]

    def whole(self, *inputs: Any, **keywords: Any) -> tuple[list[torch.Tensor], int]:
        """As `forward`, and the number of steps that the longest row made.

        Outputs with an axis of their own are padded to the most steps, so that they do not depend on the batch.
        """
        given, lengths = self.taken(inputs)
        begun = self.begin(given, lengths, **keywords)
        batch = CellBatch(self, begun, self.limits(begun, lengths))
        state, ys, made = batch.run()
        return self.finished(state, ys, made, self.axis.most or batch.columns), int(made.max())

    def finished(
        self, state: State, ys: Sequence[torch.Tensor], lengths: torch.Tensor, columns: int
    ) -> list[torch.Tensor]:
        """As `finish`. Outputs with an axis of their own are padded to `columns`, and `lengths` follow them."""
        values = self.finish(state, ys, lengths)
        if not any(self.axis.own):
            return values
        ends = lengths if self.finishes else None  # without `finish`, zeros follow already
        outputs = [
            _padded(spec, value, columns, ends) if own else value
            for spec, value, own in zip(self._info.outputs, values, self.axis.own, strict=True)
        ]
        return [*outputs, lengths]

    # checks

    def _given_out(self, y: Any, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """What a step of so many rows gave out, or [steps, rows] of them."""
        ys = tuple(normalise(y, self._info.outputs, self._info.name)) if not self.finishes else _flat(y)
        for value in ys:
            if not isinstance(value, torch.Tensor) or value.shape[: len(shape)] != shape:
                raise ConfigError(f"step: expected y of {shape[-1]} rows, got {_described(value)}")
        return ys

    def _check_x(self, x: Any, inputs: Sequence[Any]) -> None:
        if x is None:
            if self._declared.max_steps is None:
                raise ConfigError("Recurrent: max_steps: expected a number, for a cell that feeds itself, got None")
            return
        rows: Any = [len(inputs[0]), "length"]
        if self.axis.name:
            rows[1] = inputs[self.axis.place].shape[self.axis.dim]
        fits = isinstance(x, torch.Tensor) and x.ndim >= 2 and len(x) == rows[0]
        if not fits or (self.axis.name and x.shape[1] != rows[1]):
            raise ConfigError(f"start: expected x of shape [{rows[0]}, {rows[1]}, ...] or None, got {_described(x)}")
        if self.axis.shortens:
            self._refuse_to_follow("max_steps ends rows before their length")

    def _check_state(self, where: str, state: Any, rows: int, before: State | None) -> None:
        """The state has the declared shapes, and after a step the dtypes that it had before."""
        if not isinstance(state, tuple) or len(state) != len(self._declared.state):
            raise ConfigError(f"{where}: state: expected a tuple of {len(self._declared.state)}, got {_kind(state)}")
        for place, (value, shape) in enumerate(zip(state, self._declared.state, strict=True)):
            dtype = None if before is None else before[place].dtype
            if (
                not isinstance(value, torch.Tensor)
                or value.shape != (rows, *shape)
                or (dtype is not None and value.dtype != dtype)
            ):
                kind = f"{dtype} " if dtype else ""
                raise ConfigError(
                    f"{where}: state[{place}]: expected {kind}{[rows, *shape]} as declared, got {_described(value)}"
                )

    def _check_ended(self, ended: Any, rows: int) -> None:
        if not isinstance(ended, torch.Tensor) or ended.shape != (rows,) or ended.dtype != torch.bool:
            raise ConfigError(f"step: ended: expected torch.bool {[rows]}, got {_described(ended)}")
        self._refuse_to_follow("the cell ends rows by itself")

    def _refuse_to_follow(self, why: str) -> None:
        if self.axis.followers:
            raise ConfigError(
                f"output {self.axis.followers[0]!r}: expected an axis with a name of its own, because {why}, "
                f"got {self.axis.name!r}, an axis of the inputs"
            )

    def _cast(self, value: Any) -> Any:
        return value if self.dtype is None else _as(value, self.dtype)


def recurrent_model(declared: Recurrent, info: ModelInfo) -> tuple[CellModel, ModelInfo]:
    """The model, and what it is called with: the length of each row is added to its inputs.

    Raises ConfigError `KEY: expected ..., got ...`, of a key of model.toml, where the tensors do not fit a cell.
    """
    axis = step_axis(declared, info)
    return CellModel(declared, info, axis), with_lengths(info, axis)


def try_cell(model: CellModel, *inputs: Any) -> None:
    """The first two steps of a batch, called as the model is: does the cell do what it declares?

    Raises ConfigError where it does not, and what the cell raises.
    """
    with torch.inference_mode():
        begun = model.begin(*model.taken(inputs))
        state = begun.state
        for step in range(2 if begun.x is None else min(2, begun.x.shape[1])):
            state = model.step(None if begun.x is None else begun.x[:, step], state).state


def _flat(y: Any) -> tuple[Any, ...]:
    return () if y is None else tuple(y) if isinstance(y, (tuple, list)) else (y,)


def _as(value: Any, dtype: torch.dtype) -> Any:
    """Between floating-point types only."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point() and dtype.is_floating_point
    return value.to(dtype) if floating else value


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


def _described(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else _kind(value)


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
