"""The tables of model.toml as pydantic models: what each table may hold by itself.

How the tables fit together is checked in `declared_specs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SkipValidation, model_validator

from app.contract import DATATYPES, is_integer
from app.models.tasks.task_specs import AGGREGATIONS, TASKS

AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # no dot: names of unnamed axes have one
_TENSOR_NAME = re.compile(r"\S(.*\S)?")  # such as "sepal length (cm)"


class Table(BaseModel):
    """Base of what users write: tables of model.toml, parameters of a request. Unknown keys are errors."""

    # strict: TOML has types, so the string "32" where a number belongs is a mistake
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def expects(wanted: str, fits: Callable[[Any], object]) -> AfterValidator:
    """A validator of a key: `expected WANTED, got ...` for values that do not fit."""

    def checked(value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"expected {wanted}, got {value!r}")
        return value

    return AfterValidator(checked)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(
        (type(axis) is int and (axis >= 1 or axis == -1)) or (isinstance(axis, str) and AXIS_NAME.fullmatch(axis))
        for axis in value
    )


class TensorTable(Table):
    name: Annotated[str, expects("a name in one line, without spaces at its ends", _TENSOR_NAME.fullmatch)]
    datatype: Annotated[str, expects(f"one of {', '.join(DATATYPES)}", DATATYPES.__contains__)]
    shape: Annotated[
        SkipValidation[list[int | str]],
        expects('a list of lengths (at least 1), -1 or axis names like "tokens"', _is_shape),
    ]


class InputTable(TensorTable):
    """One `[[inputs]]`. `max_shape` is as long as `shape` and bounds its variable axes; -1 there means no bound.

    `lengths` and `mask` name another input, from which the server computes this one.
    """

    max_shape: list[int] | None = None
    pad_value: Annotated[SkipValidation[float], expects("a number", lambda value: isinstance(value, int | float))] = 0
    minimum: int | None = None
    maximum: int | None = None
    lengths: str | None = None
    mask: str | None = None

    @property
    def made(self) -> bool:
        """Whether the server computes it."""
        return self.lengths is not None or self.mask is not None

    @model_validator(mode="after")
    def _bounds_fit(self) -> InputTable:
        if self.max_shape is None:
            return self
        fits = len(self.max_shape) == len(self.shape) and all(
            (bound >= 1 or bound == -1) if not is_fixed(axis) else axis == bound
            for axis, bound in zip(self.shape, self.max_shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"max_shape: expected one length per axis of {self.shape!r}, the fixed ones unchanged, of the others "
                f"the largest or -1 for none, got {self.max_shape!r}"
            )
        return self

    @model_validator(mode="after")
    def _integers_fit(self) -> InputTable:
        for key in ("pad_value", "minimum", "maximum"):
            value = getattr(self, key)
            if is_integer(self.datatype):
                limits = np.iinfo(DATATYPES[self.datatype])
                fits = isinstance(value, int) and int(limits.min) <= value <= int(limits.max)
                if value is not None and not fits:
                    raise ValueError(f"{key}: expected a value of {self.datatype}, got {value!r}")
            elif key != "pad_value" and value is not None:
                raise ValueError(f"{key}: expected none for {self.datatype}, bounds are for integers, got {value!r}")
        low, high = self.minimum, self.maximum
        if low is not None and high is not None and low > high:
            raise ValueError(f"maximum: expected at least the minimum, {low}, got {high}")
        return self


class TaskTable(Table):
    """`[task_options]`: options of a task. All keys are optional."""

    max_tokens: int | None = Field(default=None, ge=1)
    truncate: bool = False
    top: int = Field(default=5, ge=1)  # labels of an answer
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool | None = None
    prompt: str | None = None
    pairs: bool = False
    hypothesis_template: Annotated[
        str, expects("a sentence with one {} for the label", lambda value: value.count("{}") == 1)
    ] = "This example is {}."
    multi_label: bool = False
    max_new_tokens: int | None = Field(default=None, ge=1)
    aggregation: Annotated[str, expects(f"one of {', '.join(AGGREGATIONS)}", AGGREGATIONS.__contains__)] = ""
    handle_impossible_answer: bool = True

    def check(self, task: str) -> None:
        """Raise ValueError for an option that the task does not have."""
        for key in sorted(self.model_fields_set - TASKS[task].options):
            known = ", ".join(sorted(TASKS[task].options))
            raise ValueError(f"task_options.{key}: expected one of {known} for the task {task!r}, got {key}")


class OutputTable(TensorTable):
    """One `[[outputs]]`. A named axis has the length of the inputs' axis of that name."""

    labels: str | None = None


def is_fixed(axis: object) -> bool:
    return isinstance(axis, int) and axis >= 1
