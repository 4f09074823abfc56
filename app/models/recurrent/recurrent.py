"""`Recurrent`, by which a model.py declares a recurrent model: its cell, the shapes of its state, a bound of its steps.

`cells.py` runs it. Here is also what is checked of it: whether model.toml's tensors fit a cell, and whether a cell
returns what it declares. Each `check_...` raises ConfigError where not.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from app.contract import UNBOUNDED, ModelInfo, TensorSpec
from app.errors import ConfigError

Shapes = tuple[tuple[int, ...], ...]
State = tuple[torch.Tensor, ...]  # each [rows, ...]


class Recurrent:
    """A model that reads or makes a sequence one step at a time, declared by its cell.

    `cell` is an object, an nn.Module where it has weights, with the methods

        start(*inputs) -> (x, state)                  optional
        step(x_t, state) -> (y_t, state[, ended])
        finish(state, ys, lengths) -> outputs         optional

    `start` gets the inputs as declared and returns `x` [rows, length, ...], or None for a cell that feeds itself, and
    the state as a tuple of tensors [rows, ...]. Without it `x` is the first input and the state is float32 zeros. If it
    has a keyword-only argument `lengths`, it also gets each row's length, INT64 [rows]; None where all have the same.

    `step` gets `x_t` [rows, ...] (or None) and the state, and returns the next state. `y_t` is a tensor [rows, ...], a
    tuple of them, or None; `ended`, a bool [rows], says which rows end with this step. It must compute each row from
    that row alone, and must not write into what it is given: rows run together with rows at other steps, and a step may
    be run again.

    `finish` gets rows that have ended: their last states, `ys` [rows, longest, ...] with zeros beyond a row's own steps
    (a tensor, a tuple or None, as `y_t` was), and `lengths` INT64 [rows], the steps of each. It returns the outputs.
    Without it the `y_t` are the outputs: of all steps where an output's first axis is variable, else of the last step.

    `state` gives the shapes of one row's state, such as `((2, 512), (2, 512))`. A row ends after its own length of `x`,
    after `max_steps`, or when its cell says so, whichever is first. Raises ConfigError.
    """

    def __init__(self, cell: Any, state: Shapes, max_steps: int | None = None) -> None:
        if isinstance(cell, type) or not callable(getattr(cell, "step", None)):
            wanted = "an object with a method step(x_t, state)"
            raise ConfigError(f"Recurrent: cell: expected {wanted}, got {kind_of(cell)}")
        self.cell = cell
        self.state = _shapes(state)
        if max_steps is not None and not _is_length(max_steps):
            raise ConfigError(f"Recurrent: max_steps: expected a number of at least 1 or None, got {max_steps!r}")
        self.max_steps = max_steps
        self.starts, self.finishes = (callable(getattr(cell, name, None)) for name in ("start", "finish"))
        parameters = inspect.signature(cell.start).parameters if self.starts else {}
        #: Whether `start` has a keyword `lengths`.
        self.wants_lengths = "lengths" in parameters and parameters["lengths"].kind is inspect.Parameter.KEYWORD_ONLY

    def check_state(self, where: str, state: Any, rows: int, before: State | None) -> None:
        """Check that the state has the declared shapes, and after a step the same dtypes as before."""
        if not isinstance(state, tuple) or len(state) != len(self.state):
            raise ConfigError(f"{where}: state: expected a tuple of {len(self.state)}, got {kind_of(state)}")
        for place, (value, shape) in enumerate(zip(state, self.state, strict=True)):
            dtype = None if before is None else before[place].dtype
            fits = isinstance(value, torch.Tensor) and value.shape == (rows, *shape)
            if not fits or (dtype is not None and value.dtype != dtype):
                kind = f"{dtype} " if dtype else ""
                raise ConfigError(
                    f"{where}: state[{place}]: expected {kind}{[rows, *shape]} as declared, got {_described(value)}"
                )


def _shapes(state: Any) -> Shapes:
    """The shapes as tuples. Raises ConfigError unless they are at least one, of lengths of at least 1."""
    fits = isinstance(state, (tuple, list)) and state and all(isinstance(shape, (tuple, list)) for shape in state)
    if not fits or not all(_is_length(axis) for shape in state for axis in shape):
        raise ConfigError(f"Recurrent: state: expected shapes of one row's state, like ((2, 512), (2,)), got {state!r}")
    return tuple(tuple(shape) for shape in state)


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# what fits a cell


class StepAxis:
    """The axis of the steps. `name`: the inputs' variable axis, "" if all rows have one length. `place` and `dim`: the
    input that has it, and in which dimension; 0 is the batch.

    `most`: the largest number of steps of a row, None without a bound. `shortens`: that is less than the inputs may be
    long. `own`: of each output, whether it is as long as the row ran. `follower`: an output as long as the row's input.
    """

    def __init__(self, declared: Recurrent, info: ModelInfo) -> None:
        """Raises ConfigError `KEY: expected ..., got ...`, of a key of model.toml, unless the tensors fit the cell."""
        for place, spec in enumerate(info.inputs):
            if spec.datatype == "BYTES":
                raise ConfigError(
                    f"inputs[{place}].datatype: expected a numeric type for a recurrent model, got 'BYTES'"
                )
        if not declared.starts and not info.inputs[0].shape:
            raise ConfigError("inputs[0].shape: expected [length, ...], which a cell without start reads, got []")
        self.name, self.place, self.dim, bound = _sequence(declared, info)
        known = {axis for spec in info.inputs for axis in spec.axes if axis}
        most = min((length for length in (declared.max_steps, bound) if length), default=None)
        self.shortens = most is not None and most != bound
        if declared.starts and declared.max_steps:
            most = declared.max_steps  # a cell that feeds itself may make more steps than its inputs are long
        self.own = tuple(leads(spec) and spec.axes[0] not in known for spec in info.outputs)
        for index, spec in enumerate(info.outputs):
            if not _fits(spec, known, None if declared.finishes else self.name):
                raise ConfigError(
                    f"outputs[{index}].shape: expected the axis of the steps first and no other one that is variable, "
                    f"got {[axis or length for axis, length in zip(spec.axes, spec.shape, strict=True)]}"
                )
            if self.own[index] and self.name and most is None:
                raise ConfigError(
                    f"outputs[{index}].shape: expected a bound of the axis {spec.axes[0]!r}: max_steps of Recurrent, "
                    f"or max_shape of the input along {self.name!r}; got neither"
                )
        self.follower = next((spec.name for spec in info.outputs if self.name and self.name in spec.axes), None)
        self.most = most

    def with_lengths(self, info: ModelInfo) -> ModelInfo:
        """The ModelInfo of the actual call: the server adds each row's length as the last input.

        An output's own axis is bounded by the largest number of steps; along it each row is as long as it ran.
        """
        made: tuple[TensorSpec, ...] = ()
        if self.name:
            # a name with spaces, which no declared input has
            made = (TensorSpec(f"lengths of {self.name}", "INT64", (), (), (), lengths_of=self.name),)
        bound = self.most or UNBOUNDED
        outputs = tuple(
            replace(spec, bounds=(bound, *spec.bounds[1:])) if own else spec
            for spec, own in zip(info.outputs, self.own, strict=True)
        )
        own_axes = dict.fromkeys(spec.axes[0] for spec, own in zip(info.outputs, self.own, strict=True) if own)
        return replace(info, inputs=(*info.inputs, *made), outputs=outputs, own_axes=tuple(own_axes))

    def check_x(self, x: Any, inputs: Sequence[Any], max_steps: int | None) -> None:
        """Check that the `x` of `start` is as long as the inputs."""
        if x is None:
            if max_steps is None:
                raise ConfigError("Recurrent: max_steps: expected a number, for a cell that feeds itself, got None")
            return
        rows: Any = [len(inputs[0]), "length"]
        if self.name:
            rows[1] = inputs[self.place].shape[self.dim]
        fits = isinstance(x, torch.Tensor) and x.ndim >= 2 and len(x) == rows[0]
        if not fits or (self.name and x.shape[1] != rows[1]):
            raise ConfigError(f"start: expected x of shape [{rows[0]}, {rows[1]}, ...] or None, got {_described(x)}")
        if self.shortens:
            self._refuse_to_follow("max_steps ends rows before their length")

    def check_ended(self, ended: Any, rows: int) -> None:
        if not isinstance(ended, torch.Tensor) or ended.shape != (rows,) or ended.dtype != torch.bool:
            raise ConfigError(f"step: ended: expected torch.bool {[rows]}, got {_described(ended)}")
        self._refuse_to_follow("the cell ends rows by itself")

    def _refuse_to_follow(self, why: str) -> None:
        if self.follower is not None:
            raise ConfigError(
                f"output {self.follower!r}: expected an axis with a name of its own, because {why}, "
                f"got {self.name!r}, an axis of the inputs"
            )


def leads(spec: TensorSpec) -> bool:
    """Whether the first axis is variable."""
    return spec.axes[:1] not in ((), ("",))


def _sequence(declared: Recurrent, info: ModelInfo) -> tuple[str, int, int, int | None]:
    """The axis of the steps, its input and dimension, and its bound: the first axis of the first input. A cell with
    `start` may transform its inputs, so there it is the first variable axis.
    """
    for place, spec in enumerate(info.inputs if declared.starts else info.inputs[:1]):
        for dim, (axis, bound) in enumerate(zip(spec.axes, spec.bounds, strict=True)):
            if axis and (declared.starts or dim == 0):
                return axis, place, dim + 1, bound or None
    return "", 0, 1, None


def _fits(spec: TensorSpec, known: set[str], follow: str | None) -> bool:
    """Whether an output's axes are allowed. An axis of its own counts the steps. `follow`: the only axis of the inputs
    that it may have, as its first; None: any, because `finish` makes the output.
    """
    strange = [axis for axis in spec.axes[1:] if axis and (follow is not None or axis not in known)]
    return not strange and (not leads(spec) or follow is None or spec.axes[0] not in known or spec.axes[0] == follow)


# what a cell returns


def check_ys(ys: Sequence[Any], shape: tuple[int, ...]) -> None:
    """Check that each y of a step is of all rows, or of several steps [steps, rows]."""
    for value in ys:
        if not isinstance(value, torch.Tensor):
            raise ConfigError(f"step: y: expected a tensor or a tuple of tensors, got {kind_of(value)}")
        if value.shape[: len(shape)] != shape:
            raise ConfigError(f"step: expected y of {shape[-1]} rows, got {_described(value)}")


def _described(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else kind_of(value)


def kind_of(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
