"""Reads and checks model.toml: its keys as pydantic models, then their meaning as the types of the contract.

Everything wrong with the file becomes a ConfigError `FILE: KEY: expected ..., got ...`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from app.contract import DATATYPES, Batching, ModelInfo, ModelSource, TensorSpec
from app.errors import ConfigError

FILE_NAME = "model.toml"
_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # no dot: names of unnamed axes have one
_TENSOR_NAME = re.compile(r"\S+")


class _Table(BaseModel):
    # strict: TOML has types, so the string "32" where a number belongs is a mistake
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _TensorTable(_Table):
    name: str
    datatype: str
    shape: list[int | str]

    @field_validator("name")
    @classmethod
    def _name_is_one_word(cls, value: str) -> str:
        if not _TENSOR_NAME.fullmatch(value):
            raise ValueError(f"expected a name without spaces, got {value!r}")
        return value

    @field_validator("datatype")
    @classmethod
    def _datatype_is_known(cls, value: str) -> str:
        if value not in DATATYPES:
            raise ValueError(f"expected one of {', '.join(DATATYPES)}, got {value!r}")
        return value

    @field_validator("shape", mode="before")
    @classmethod
    def _axes_are_lengths_or_names(cls, value: Any) -> Any:
        wanted = 'expected a list of lengths (at least 1), -1 or axis names like "tokens"'
        if not isinstance(value, list):
            raise ValueError(f"{wanted}, got {value!r}")  # noqa: TRY004 - pydantic only takes ValueError
        for axis in value:
            length = isinstance(axis, int) and not isinstance(axis, bool) and (axis >= 1 or axis == -1)
            name = isinstance(axis, str) and _AXIS_NAME.fullmatch(axis)
            if not length and not name:
                raise ValueError(f"{wanted}, got {axis!r} in {value!r}")
        return value


class InputTable(_TensorTable):
    """One `[[inputs]]`. `max_shape` is as long as `shape` and bounds its variable axes."""

    max_shape: list[Annotated[int, Field(ge=1)]] | None = None
    pad_value: bool | int | float = 0
    minimum: int | None = None
    maximum: int | None = None

    @model_validator(mode="after")
    def _bounds_fit(self) -> InputTable:
        variable = [axis for axis in self.shape if not _is_fixed(axis)]
        if self.max_shape is None:
            if variable:
                raise ValueError(f"max_shape: expected a bound for the variable axes of {self.shape!r}, got none")
            return self
        fits = len(self.max_shape) == len(self.shape) and all(
            not _is_fixed(axis) or axis == bound for axis, bound in zip(self.shape, self.max_shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"max_shape: expected one length per axis of {self.shape!r}, the fixed ones unchanged, "
                f"got {self.max_shape!r}"
            )
        return self

    @model_validator(mode="after")
    def _pad_value_fits(self) -> InputTable:
        dtype = DATATYPES[self.datatype]
        if dtype.kind in "iu" and self.datatype != "BF16":
            limits = np.iinfo(dtype)
            whole = isinstance(self.pad_value, int)
            if not whole or not int(limits.min) <= self.pad_value <= int(limits.max):
                raise ValueError(f"pad_value: expected a value of {self.datatype}, got {self.pad_value!r}")
        return self

    @model_validator(mode="after")
    def _range_fits(self) -> InputTable:
        given = {"minimum": self.minimum, "maximum": self.maximum}
        dtype = DATATYPES[self.datatype]
        for key, value in given.items():
            if value is None:
                continue
            if dtype.kind not in "iu" or self.datatype == "BF16":
                raise ValueError(f"{key}: expected none for {self.datatype}, bounds are for integers, got {value!r}")
            limits = np.iinfo(dtype)
            if not int(limits.min) <= value <= int(limits.max):
                raise ValueError(f"{key}: expected a value of {self.datatype}, got {value!r}")
        low, high = self.minimum, self.maximum
        if low is not None and high is not None and low > high:
            raise ValueError(f"maximum: expected at least the minimum, {low}, got {high}")
        return self


class OutputTable(_TensorTable):
    """One `[[outputs]]`. A named axis has the length, and so the bound, of the input axis of that name."""

    labels: str | None = None


class BatchingTable(_Table):
    """`[batching]`: the fields of `contract.Batching`, each optional."""

    policy: Literal["adaptive", "no_wait", "window", "static", "preferred", "ebird"] | None = None
    objective: Literal["latency", "balanced", "energy"] | Annotated[float, Field(ge=0, lt=1)] | None = None
    max_batch: int | None = Field(default=None, ge=1, le=4096)
    max_delay_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    max_queue: int | None = Field(default=None, ge=1)
    default_timeout_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    default_priority: int | None = Field(default=None, ge=1)
    length_buckets: list[Annotated[int, Field(ge=1)]] | None = None

    @field_validator("length_buckets")
    @classmethod
    def _buckets_rise(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and any(low >= high for low, high in pairwise(value)):
            raise ValueError(f"expected rising lengths, got {value!r}")
        return value

    def given(self) -> dict[str, Any]:
        """The fields that were given, as arguments of `contract.Batching`."""
        values = {key: value for key, value in self if value is not None}
        if "length_buckets" in values:
            values["length_buckets"] = tuple(values["length_buckets"])
        return values


class WarmupTable(_Table):
    """`[warmup]`: real rows to try the model with, beside model.toml."""

    file: str

    @field_validator("file")
    @classmethod
    def _format_is_known(cls, value: str) -> str:
        if not value.endswith((".json", ".npz")):
            raise ValueError(f"expected a .json or .npz file, got {value!r}")
        return value


class ModelTable(_Table):
    """The whole of a model.toml."""

    source: str = Field(min_length=1)
    kwargs: dict[str, Any] = {}
    weights: str | None = None
    platform: str = "pytorch"
    description: str = ""
    row_check: Literal["refuse", "warn", "off"] = "refuse"
    warmup: WarmupTable | None = None
    inputs: list[InputTable] = Field(min_length=1)
    outputs: list[OutputTable] = Field(min_length=1)
    batching: BatchingTable = BatchingTable()

    @model_validator(mode="after")
    def _names_differ(self) -> ModelTable:
        for key, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            names = [tensor.name for tensor in tensors]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{key}: expected names that differ, got {twice[0]!r} more than once")
        return self


def read_config(folder: Path) -> ModelTable:
    """Read `folder`/model.toml. Raises ConfigError naming the file, the key, what was expected and what came."""
    path = folder / FILE_NAME
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: expected a readable TOML file: {error}") from None
    try:
        return ModelTable.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error, ModelTable)}") from None


def model_info(config: ModelTable, source: ModelSource, overrides: Mapping[str, object] | None = None) -> ModelInfo:
    """What the file declares, as callers see it. Reads the files of labels.

    `overrides` holds fields of `contract.Batching` that beat the file's (flags and environment variables); a value of
    None is not given. Raises ConfigError for axes or labels that do not fit together, and for a wrong override.
    """
    path = source.folder / FILE_NAME
    bounds: dict[str, int] = {}
    inputs = tuple(_input_spec(path, index, table, bounds) for index, table in enumerate(config.inputs))
    outputs = tuple(_output_spec(path, index, table, bounds) for index, table in enumerate(config.outputs))
    return ModelInfo(
        name=source.name,
        version=str(source.version),
        platform=config.platform,
        inputs=inputs,
        outputs=outputs,
        batching=_batching(config.batching, overrides or {}),
    )


def _input_spec(path: Path, index: int, table: InputTable, bounds: dict[str, int]) -> TensorSpec:
    limits = table.max_shape or [axis for axis in table.shape if isinstance(axis, int)]
    for axis, limit in zip(table.shape, limits, strict=True):
        if isinstance(axis, str) and bounds.setdefault(axis, limit) != limit:
            raise ConfigError(
                f"{path}: inputs[{index}].max_shape: expected {bounds[axis]} for the axis {axis!r}, "
                f"which another input bounds so, got {limit}"
            )
    return TensorSpec(
        name=table.name,
        datatype=table.datatype,
        shape=tuple(axis if isinstance(axis, int) else -1 for axis in table.shape),
        axes=_axis_names(table),
        bounds=tuple(limits),
        pad_value=table.pad_value,
        minimum=table.minimum,
        maximum=table.maximum,
    )


def _output_spec(path: Path, index: int, table: OutputTable, bounds: Mapping[str, int]) -> TensorSpec:
    for axis in table.shape:
        if isinstance(axis, str) and axis not in bounds:
            known = ", ".join(bounds) or "none"
            raise ConfigError(
                f"{path}: outputs[{index}].shape: expected -1 or an axis name of an input ({known}), got {axis!r}"
            )
    labels = _read_labels(path, index, table)
    return TensorSpec(
        name=table.name,
        datatype=table.datatype,
        shape=tuple(axis if isinstance(axis, int) else -1 for axis in table.shape),
        axes=_axis_names(table),
        bounds=tuple(bounds[axis] if isinstance(axis, str) else axis for axis in table.shape),
        labels=labels,
    )


def _read_labels(path: Path, index: int, table: OutputTable) -> tuple[str, ...]:
    if table.labels is None:
        return ()
    try:
        labels = tuple((path.parent / table.labels).read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the name
        raise ConfigError(f"{path}: outputs[{index}].labels: expected a readable text file: {error}") from None
    last = table.shape[-1] if table.shape else -1
    if _is_fixed(last) and len(labels) != last:
        raise ConfigError(
            f"{path}: outputs[{index}].labels: expected {last} lines in {table.labels!r}, one per value, "
            f"got {len(labels)}"
        )
    return labels


def _batching(table: BatchingTable, overrides: Mapping[str, object]) -> Batching:
    given = {key: value for key, value in overrides.items() if value is not None}
    unknown = sorted(set(given) - {field.name for field in fields(Batching)})
    if unknown:
        raise ConfigError(f"setting {unknown[0]}: not a setting of batching")
    if isinstance(given.get("length_buckets"), tuple):
        given["length_buckets"] = list(given["length_buckets"])  # type: ignore[call-overload]
    try:
        forced = BatchingTable.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"setting {_explain(error, BatchingTable)}") from None
    return Batching(**{**table.given(), **forced.given()})


def _axis_names(table: _TensorTable) -> tuple[str, ...]:
    return tuple(
        axis if isinstance(axis, str) else "" if axis >= 0 else f"{table.name}.{index}"
        for index, axis in enumerate(table.shape)
    )


def _is_fixed(axis: int | str) -> bool:
    return isinstance(axis, int) and axis >= 1


def _explain(error: ValidationError, table: type[BaseModel]) -> str:
    """The first thing wrong, as `inputs[0].shape: expected ..., got ...`."""
    first = error.errors()[0]
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
    if first["type"] == "missing":
        return f"{where}: expected a value, got none"
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key; expected one of {', '.join(_known_keys(table, first['loc']))}"
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        # a validator of a whole table names the key within it
        return f"{where}.{text}" if re.match(r"\w+: ", text) and where else f"{where}: {text}" if where else text
    wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return f"{where}: expected {wanted}, got {first['input']!r}"


def _known_keys(table: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """The keys of the table that the second last step of a location leads to."""
    parts: dict[str, type[BaseModel]] = {
        "inputs": InputTable, "outputs": OutputTable, "batching": BatchingTable, "warmup": WarmupTable,
    }  # fmt: skip
    inner: type[BaseModel] = parts.get(str(steps[0]), table) if len(steps) > 1 else table
    return list(inner.model_fields)
