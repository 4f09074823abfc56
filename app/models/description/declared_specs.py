"""Makes TensorSpecs of `[[inputs]]` and `[[outputs]]` of model.toml: axes, bounds, inputs that the server computes.

Every fault is a ConfigError `FILE: KEY: expected ..., got ...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from app.contract import DATATYPES, UNBOUNDED, ModelInfo, TensorSpec, axis_bounds, is_integer
from app.errors import ConfigError
from app.models.description.config_tables import InputTable, OutputTable, TensorTable, is_fixed
from app.models.model_files import file_at

_LONGEST = (1 << 31) - 1  # for an axis without bound: longer rows do not fit in a request body


def input_specs(path: Path, tables: Sequence[InputTable]) -> tuple[TensorSpec, ...]:
    """The inputs in the order declared. Raises ConfigError naming `path` and the key."""
    sent = {table.name: table for table in tables if not table.made}
    bounds = _bounds(path, tables)
    specs: list[TensorSpec] = []
    for index, table in enumerate(tables):
        with _errors_of(path, "inputs", index):
            specs.append(_input_spec(table, sent, bounds))
    return tuple(specs)


def _input_spec(table: InputTable, sent: Mapping[str, InputTable], bounds: Mapping[str, int]) -> TensorSpec:
    if table.made:
        return _made_spec(table, sent, bounds)
    values = {key: getattr(table, key) for key in ("pad_value", "minimum", "maximum")}
    return _spec(table, _axis_names(table), bounds, **values)


def output_specs(path: Path, tables: Sequence[OutputTable], inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The outputs in the order declared. Reads the files of labels. Raises ConfigError naming `path` and the key.

    An axis -1 is the inputs' only variable axis. If they have none, it is an axis of the output's own, as is one whose
    name no input has: see `refuse_own_axes`.
    """
    bounds = axis_bounds(inputs)
    specs = []
    for index, table in enumerate(tables):
        with _errors_of(path, "outputs", index):
            axes = tuple(_output_axis(axis, bounds, inputs) for axis in _axis_names(table))
            specs.append(_spec(table, axes, bounds, labels=_read_labels(path.parent, table)))
    return tuple(specs)


def refuse_own_axes(path: Path, info: ModelInfo) -> None:
    """Raise ConfigError for an output's axis that no input has. Only recurrent models may have one: their rows end by
    themselves.
    """
    known = [axis for axis in axis_bounds(info.inputs) if "." not in axis]
    for index, spec in enumerate(info.outputs):
        for axis in spec.axes:
            if axis and "." not in axis and axis not in known:
                raise ConfigError(
                    f"{path}: outputs[{index}].shape: expected -1 or an axis name of an input "
                    f"({', '.join(known) or 'none'}), got {axis!r}"
                )


@contextmanager
def _errors_of(path: Path, key: str, index: int) -> Iterator[None]:
    """A ValueError of one table, `KEY: expected ..., got ...`, becomes a ConfigError that names file and table."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{path}: {key}[{index}].{error}") from None


def _bounds(path: Path, tables: Sequence[InputTable]) -> dict[str, int]:
    """The largest length of each variable axis that has one. An axis may be bounded in any of its inputs."""
    bounds: dict[str, int] = {}
    for index, table in enumerate(tables):
        for axis, bound in zip(_axis_names(table), table.max_shape or (), strict=False):
            with _errors_of(path, "inputs", index):
                if axis and bound != -1 and bounds.setdefault(axis, bound) != bound:
                    raise ValueError(
                        f"max_shape: expected {bounds[axis]} for the axis {axis!r}, which another input bounds so, "
                        f"got {bound}"
                    )
    return bounds


# inputs that the server makes


def _made_spec(table: InputTable, sent: Mapping[str, InputTable], bounds: Mapping[str, int]) -> TensorSpec:
    """Of lengths or a mask: it has no keys about values of clients. They send the input that it is computed from, which
    has a variable axis, and is not text.
    """
    if table.lengths is not None and table.mask is not None:
        raise ValueError("mask: expected an input to be either lengths or a mask, got both")
    for name in ("max_shape", "pad_value", "minimum", "maximum"):
        if name in table.model_fields_set:
            value = getattr(table, name)
            raise ValueError(f"{name}: expected none for an input that the server makes, got {value!r}")
    key, wanted = ("lengths", table.lengths) if table.mask is None else ("mask", table.mask)
    source = sent.get(str(wanted))
    if source is None:
        known = ", ".join(map(repr, sent))
        raise ValueError(f"{key}: expected an input that clients send ({known}), got {wanted!r}")
    if source.datatype == "BYTES":
        raise ValueError(f"{key}: expected an input that is not of type BYTES, got {wanted!r}")
    if not any(_axis_names(source)):
        raise ValueError(f"{key}: expected an input with a variable axis, got {wanted!r} of shape {source.shape!r}")
    return (_lengths_spec if table.mask is None else _mask_spec)(table, source, bounds)


def _lengths_spec(table: InputTable, source: InputTable, bounds: Mapping[str, int]) -> TensorSpec:
    if not is_integer(table.datatype):
        raise ValueError(f"datatype: expected an integer type for lengths, got {table.datatype!r}")
    if table.shape:
        raise ValueError(f"shape: expected [] for lengths, which are one number a row, got {table.shape!r}")
    axis, *others = filter(None, _axis_names(source))
    if others:
        got = f"got {source.name!r} of shape {source.shape!r}"
        raise ValueError(f"lengths: expected an input with one variable axis, {got}")
    longest = bounds.get(axis, _LONGEST)
    if longest > int(np.iinfo(DATATYPES[table.datatype]).max):
        raise ValueError(f"datatype: expected a type that holds lengths up to {longest}, got {table.datatype!r}")
    return TensorSpec(table.name, table.datatype, (), (), (), lengths_of=axis)


def _mask_spec(table: InputTable, source: InputTable, bounds: Mapping[str, int]) -> TensorSpec:
    if table.datatype == "BYTES":
        raise ValueError("datatype: expected a numeric type or BOOL for a mask, got 'BYTES'")
    axes = _axis_names(source)
    variable = [length for length, axis in zip(source.shape, axes, strict=True) if axis]
    if table.shape not in (source.shape, variable):
        either = "" if variable == source.shape else f", or {variable!r}, its variable axes"
        raise ValueError(f"shape: expected {source.shape!r}, the shape of {source.name!r}{either}, got {table.shape!r}")
    whole = table.shape == source.shape
    return _spec(table, axes if whole else tuple(filter(None, axes)), bounds, mask_of=source.name)


# outputs


def _output_axis(axis: str, bounds: Mapping[str, int], inputs: Sequence[TensorSpec]) -> str:
    """The name of an output's axis, "" for a fixed one."""
    if "." not in axis:
        return axis
    if len(bounds) > 1:
        raise ValueError(
            f"shape: expected the name of an axis in place of -1, because the inputs have several: {_named(inputs)}"
        )
    return next(iter(bounds), axis)


def _named(inputs: Sequence[TensorSpec]) -> str:
    """The variable axes to choose from; those without a name by their input and place."""
    axes: dict[str, str] = {}
    for spec in inputs:
        for place, axis in enumerate(spec.axes):
            if axis and not spec.made:
                unnamed = f"shape[{place}] of {spec.name!r} (give it a name there)"
                axes.setdefault(axis, unnamed if "." in axis else repr(axis))
    return ", ".join(axes.values())


def _read_labels(folder: Path, table: OutputTable) -> tuple[str, ...]:
    if table.labels is None:
        return ()
    try:
        labels = tuple(file_at(folder / table.labels).read_text(encoding="utf-8-sig").splitlines())
    except (OSError, ValueError, ConfigError) as error:  # ValueError: no UTF-8, or a NUL in the name
        raise ValueError(f"labels: expected a readable text file: {error}") from None
    last = table.shape[-1] if table.shape else -1
    if is_fixed(last) and len(labels) != last:
        raise ValueError(f"labels: expected {last} lines in {table.labels!r}, one per value, got {len(labels)}")
    return labels


# both


def _spec(table: TensorTable, axes: tuple[str, ...], bounds: Mapping[str, int], **more: Any) -> TensorSpec:
    """The spec of a table with these names of axes; `more` of its fields."""
    shape = tuple(axis if isinstance(axis, int) else -1 for axis in table.shape)
    largest = (bounds.get(axis, UNBOUNDED) if axis else length for axis, length in zip(axes, shape, strict=True))
    return TensorSpec(table.name, table.datatype, shape, axes, tuple(largest), **more)


def _axis_names(table: TensorTable) -> tuple[str, ...]:
    return tuple(
        axis if isinstance(axis, str) else "" if axis >= 0 else f"{table.name}.{index}"
        for index, axis in enumerate(table.shape)
    )
