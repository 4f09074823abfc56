"""Makes TensorSpecs of `[[inputs]]` and `[[outputs]]` of model.toml: axes, bounds, inputs that the server computes.

Every fault is a ConfigError `FILE: KEY: expected ..., got ...`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from app.contract import DATATYPES, UNBOUNDED, ModelInfo, TensorSpec, axis_bounds, is_integer
from app.errors import ConfigError
from app.models.description.config_tables import InputTable, OutputTable, TensorTable, is_fixed
from app.models.model_files import file_at

_Table = TypeVar("_Table", bound=TensorTable)
_LONGEST = (1 << 31) - 1  # for an axis without bound: longer rows do not fit in a request body


def input_specs(path: Path, tables: Sequence[InputTable]) -> tuple[TensorSpec, ...]:
    """The inputs in the order declared. Raises ConfigError naming `path` and the key."""
    sent = {table.name: table for table in tables if not table.made}
    bounds = dict(bounded for table in reversed(tables) for bounded in _bounds(table))  # in any of an axis's inputs
    return _each(path, "inputs", tables, lambda table: _input_spec(table, sent, bounds))


def output_specs(path: Path, tables: Sequence[OutputTable], inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The outputs in the order declared. Reads the files of labels. Raises ConfigError naming `path` and the key.

    An axis -1 is the inputs' only variable axis. If they have none, it is an axis of the output's own, as is one whose
    name no input has: see `refuse_own_axes`.
    """
    bounds = axis_bounds(inputs)

    def spec(table: OutputTable) -> TensorSpec:
        axes = tuple(_output_axis(axis, bounds, inputs) for axis in _axis_names(table))
        return _spec(table, axes, bounds, labels=_read_labels(path.parent, table))

    return _each(path, "outputs", tables, spec)


def _each(
    path: Path, key: str, tables: Sequence[_Table], make: Callable[[_Table], TensorSpec]
) -> tuple[TensorSpec, ...]:
    """A spec of each table. A ValueError, `KEY: expected ..., got ...`, becomes a ConfigError that names the table."""
    specs: list[TensorSpec] = []
    try:
        specs.extend(map(make, tables))
    except ValueError as error:
        raise ConfigError(f"{path}: {key}[{len(specs)}].{error}") from None
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


# inputs


def _bounds(table: InputTable) -> list[tuple[str, int]]:
    """The variable axes that this table bounds, with their largest lengths."""
    both = zip(_axis_names(table), table.max_shape or (), strict=False)
    return [(axis, bound) for axis, bound in both if axis and bound != -1]


def _input_spec(table: InputTable, sent: Mapping[str, InputTable], bounds: Mapping[str, int]) -> TensorSpec:
    for axis, bound in _bounds(table):
        if bound != bounds[axis]:
            raise ValueError(
                f"max_shape: expected {bounds[axis]} for the axis {axis!r}, which another input bounds so, got {bound}"
            )
    if table.made:
        return _made_spec(table, sent, bounds)
    values = {key: getattr(table, key) for key in ("pad_value", "minimum", "maximum")}
    return _spec(table, _axis_names(table), bounds, **values)


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
