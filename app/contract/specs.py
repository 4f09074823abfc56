"""The description of a model: its tensors, its batching, and rows to try it with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.scheduler.policies import policy_class
from app.scheduler.types import Klass

Array = npt.NDArray[Any]

#: The numpy dtype in memory of each V2 datatype. numpy has no BF16: its bits are stored as uint16.
#: BYTES elements are Python `bytes` in object arrays.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}

#: Floating-point datatypes.
FLOATS = ("FP16", "BF16", "FP32", "FP64")

#: Names of the service classes in requests and model.toml; the first is served first.
CLASSES = {str(klass): klass for klass in Klass}

#: Pixels of the largest image that is decoded (150 MB), checked in its header.
MAX_PIXELS = 50_000_000

_QUEUE_ROWS, _QUEUE_BATCHES = 1024, 32  # default size of a queue: the larger of the two

QUICK_VALUES = 1 << 15  #: numbers whose JSON takes some 2 ms: more are for a helper thread, in slices
UNBOUNDED = 0  #: as the largest length of a variable axis: only the size of a body limits it


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of one row: `shape` has no batch dimension, and -1 for each variable axis.

    `axes[i]` is "" if axis i is fixed, else its name. Axes of one name have the same length within a call, and an
    output's named axis is cut to it. An input axis declared as -1 gets a name of its own (`<tensor>.<i>`). `bounds` is
    `shape` with each variable axis replaced by its largest length, or UNBOUNDED.

    `minimum` and `maximum` limit the values of an integer input; None: its datatype does.

    The server itself makes an input with `lengths_of` or `mask_of`; clients do not send it. `lengths_of` names an axis:
    the input has each row's length along it. `mask_of` names an input of the same shape, or of the same variable axes:
    the mask is 1 where that input has a row's values, and 0 where it has padding.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    bounds: tuple[int, ...]
    pad_value: float = 0
    labels: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    lengths_of: str = ""
    mask_of: str = ""
    #: Derived once, because every call needs them: the dtype in memory, and whether all axes are fixed.
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    fixed: bool = field(init=False, repr=False, compare=False)
    #: Whether every axis has a largest length, so that memory for a row can be reserved.
    bounded: bool = field(init=False, repr=False, compare=False)
    #: Number of values in the largest row; 0 if there is no largest.
    count: int = field(init=False, repr=False, compare=False)
    #: Whether `minimum` or `maximum` is given.
    ranged: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DATATYPES[self.datatype])
        object.__setattr__(self, "fixed", not any(self.axes))
        object.__setattr__(self, "bounded", UNBOUNDED not in self.bounds)
        object.__setattr__(self, "count", prod(self.bounds))
        object.__setattr__(self, "ranged", self.minimum is not None or self.maximum is not None)

    @property
    def made(self) -> bool:
        """Whether the server makes this input."""
        return bool(self.lengths_of or self.mask_of)

    @property
    def example(self) -> int:
        """A value within `minimum` and `maximum`, to try a model with."""
        # 1 rather than 0: it is a valid id, and a mask of ones leaves values to average.
        least = 1 if self.minimum is None else max(1, self.minimum)
        return least if self.maximum is None else min(least, self.maximum)

    def fits(self, row: Sequence[int]) -> bool:
        """Whether a row of this shape has the declared one, apart from variable axes."""
        return len(row) == len(self.shape) and all(
            axis or length == declared for axis, length, declared in zip(self.axes, row, self.shape, strict=True)
        )

    def row_shape(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one row; variable axes have these lengths, or their bounds if none is given."""
        axes = zip(self.axes, self.bounds, strict=True)
        return tuple(lengths.get(axis, bound) if axis else bound for axis, bound in axes)

    def axes_shown(self) -> list[str]:
        """The shape for messages: lengths, and the names of variable axes ("any": it has none) with their largest
        length."""
        names = ["any" if "." in axis else axis for axis in self.axes]
        return [
            str(bound) if not axis else axis if bound == UNBOUNDED else f"{axis} <= {bound}"
            for axis, bound in zip(names, self.bounds, strict=True)
        ]


def axis_bounds(specs: Iterable[TensorSpec]) -> dict[str, int]:
    """The largest length of each variable axis, UNBOUNDED if there is none."""
    return {axis: bound for spec in specs for axis, bound in zip(spec.axes, spec.bounds, strict=True) if axis}


def is_integer(datatype: str) -> bool:
    """False for BF16, although its bits are stored as integers."""
    return DATATYPES[datatype].kind in "iu" and datatype not in FLOATS


class Batching(BaseModel):
    """How requests to a model are queued and batched: `[batching]` of model.toml. Durations are in milliseconds."""

    # strict: TOML has types, so the string "32" where a number belongs is a mistake
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    policy: str = "adaptive"
    objective: Literal["latency", "deadline"] = "latency"  # of the policy adaptive
    max_batch: int = Field(default=32, ge=1, le=4096)
    max_delay_ms: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    #: Rows of each class. By default 32 x max_batch, and at least 1024.
    max_queue: int = Field(default=0, ge=1)
    default_timeout_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # of calls without one; 0: none
    default_priority: int = Field(default=2, ge=1)  # what priority 0 means; 1 is the highest
    default_class: Literal["realtime", "best_effort"] = "realtime"  # of calls that name none
    #: Upper bounds of the ranges of lengths that may share a batch; none: all may.
    length_buckets: Annotated[tuple[Annotated[int, Field(ge=1, strict=True)], ...], Field(strict=False)] = ()
    reorder: bool = True  # the policy may pick the rows of a batch by their lengths
    #: For the policy dva_load: its T_comp_wait as a multiple of the time of one row alone.
    complete_wait: float = Field(default=0.1, ge=0, allow_inf_nan=False)

    @field_validator("length_buckets")
    @classmethod
    def _buckets_rise(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(low >= high for low, high in pairwise(value)):
            raise ValueError(f"expected rising lengths, got {list(value)!r}")
        return value

    @model_validator(mode="after")
    def _policy_is_known(self) -> Batching:
        policy_class(self.policy)  # raises ValueError that lists them
        return self

    def model_post_init(self, context: Any, /) -> None:
        if not self.max_queue:
            self.__dict__["max_queue"] = max(_QUEUE_ROWS, _QUEUE_BATCHES * self.max_batch)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The public description of one version of a model. `inputs`: all that the model is called with, in order."""

    name: str
    version: str
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batching: Batching = field(default_factory=Batching)
    #: Axes of outputs that no input has, each the first axis of its output: a row is as long as the steps it ran. A
    #: model with such axes returns one more tensor than `outputs`: these lengths, INT64 [rows].
    own_axes: tuple[str, ...] = ()
    #: A cache of the codecs for requests to this version. They limit its size.
    memo: dict[tuple[bytes, int], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    #: Derived: the inputs that clients send, in the order declared. The others are made by the server.
    client_inputs: tuple[TensorSpec, ...] = field(init=False, repr=False, compare=False)
    #: Derived: the only input that clients send, if there is one and its shape is fixed; else None.
    plain_input: TensorSpec | None = field(init=False, repr=False, compare=False)
    #: Derived: whether there is one output, equally long for all rows, whose values are JSON numbers or booleans.
    plain_output: bool = field(init=False, repr=False, compare=False)
    #: Derived: so many rows have an answer of at most QUICK_VALUES; 0 if one may have any number.
    quick_rows: int = field(init=False, repr=False, compare=False)
    #: Derived: all that the model returns, in order.
    returned: tuple[TensorSpec, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sent = tuple(spec for spec in self.inputs if not spec.made)
        object.__setattr__(self, "client_inputs", sent)
        object.__setattr__(self, "plain_input", sent[0] if len(sent) == 1 and sent[0].fixed else None)
        plain = len(self.outputs) == 1 and self.outputs[0].datatype not in ("BYTES", "BF16")
        object.__setattr__(self, "plain_output", plain and not self.own_axes)
        values = [spec.count for spec in self.outputs]
        object.__setattr__(self, "quick_rows", QUICK_VALUES // sum(values) if values and all(values) else 0)
        made = (TensorSpec("lengths", "INT64", (), (), (), lengths_of=self.own_axes[0]),) if self.own_axes else ()
        object.__setattr__(self, "returned", (*self.outputs, *made))

    def has_own_length(self, spec: TensorSpec) -> bool:
        """Whether each row of this output has its own length: the steps that it ran."""
        return spec.axes[:1] != () and spec.axes[0] in self.own_axes


@dataclass(frozen=True, slots=True, eq=False)
class SampleRow:
    """One row to try a model with: an array per input that clients send, in order, without the batch dimension.

    `lengths`: of each variable axis in this row. `parameters`: as a request would have them.
    """

    arrays: tuple[Array, ...]
    lengths: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
