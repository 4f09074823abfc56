"""`Recurrent`, by which a model.py declares a recurrent model: its cell, the shapes of its state, a bound of its steps.

`cells.py` runs it. Nothing in this file needs torch.
"""

from __future__ import annotations

import inspect
from typing import Any

from app.errors import ConfigError

Shapes = tuple[tuple[int, ...], ...]


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
            raise ConfigError(f"Recurrent: cell: expected an object with a method step(x_t, state), got {_kind(cell)}")
        self.cell = cell
        self.state = _shapes(state)
        if max_steps is not None and not _is_length(max_steps):
            raise ConfigError(f"Recurrent: max_steps: expected a number of at least 1 or None, got {max_steps!r}")
        self.max_steps = max_steps

    @property
    def starts(self) -> bool:
        return callable(getattr(self.cell, "start", None))

    @property
    def wants_lengths(self) -> bool:
        """Whether `start` has a keyword `lengths`."""
        if not self.starts:
            return False
        parameter = inspect.signature(self.cell.start).parameters.get("lengths")
        return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY

    @property
    def finishes(self) -> bool:
        return callable(getattr(self.cell, "finish", None))


def _shapes(state: Any) -> Shapes:
    """The shapes as tuples. Raises ConfigError unless they are at least one, of lengths of at least 1."""
    fits = isinstance(state, (tuple, list)) and state and all(isinstance(shape, (tuple, list)) for shape in state)
    if not fits or not all(_is_length(axis) for shape in state for axis in shape):
        raise ConfigError(f"Recurrent: state: expected shapes of one row's state, like ((2, 512), (2,)), got {state!r}")
    return tuple(tuple(shape) for shape in state)


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
