"""Reads the rows of each input from JSON values or arrays, for the friendly route and V1. Pure functions.

The shape decides: a value with the shape of a row is one row; one more leading dimension means several rows, which may
differ in length along variable axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from app.contract import Array, ModelInfo, TensorSpec
from app.errors import BadRequest, ModelFailed
from app.http.codecs.base import DecodedCall, check_rows
from app.values.arrays import cast_array, joined_rows
from app.values.tensors import check_shape, is_base64, parse_values, shown

_MOST_PADDED = 1 << 22  # values of an input whose rows differ in length along an axis that has no bound


@dataclass(frozen=True, slots=True)
class Column:
    """The rows of one input, as arrays [rows, ...]; more than one if rows differ in length.

    `single`: it was one row without a leading dimension.
    """

    parts: Sequence[Array]
    single: bool

    @property
    def rows(self) -> int:
        return sum(map(len, self.parts))


def json_column(spec: TensorSpec, value: Any, field: str, *, many: bool = False) -> Column:
    """One input from a JSON value: one row, or several rows in one more leading dimension. Rows may be nested or flat.

    `many`: there is a leading dimension. Raises BadRequest.
    """
    if spec.count == 1 and spec.fixed and isinstance(value, list) and {*map(type, value)} > {list}:
        value = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in value]  # [1, [2]]
    dims = _measure(value, len(spec.shape) + 1)
    rows, row = _split(spec, dims, field, flat=True, many=many)
    if rows is not None and not spec.fixed and len({_measure(one, len(spec.shape)) for one in value}) > 1:
        return Column([_json_row(spec, one, f"{field}[{place}]") for place, one in enumerate(value)], False)
    _check_even(value, dims, field)
    shape = check_shape(spec, (1 if rows is None else rows, *row), field, {})
    data = value if isinstance(value, list) else [value]
    return Column([parse_values(data, spec, shape, field)], rows is None)


def _json_row(spec: TensorSpec, value: Any, field: str) -> Array:
    """One row [1, ...] of an input with variable axes."""
    dims = _measure(value, len(spec.shape))
    _check_even(value, dims, field)
    return parse_values([value], spec, check_shape(spec, (1, *dims), field, {}), field)


def json_columns(info: ModelInfo, value: Any, field: str, *, many: bool = False) -> dict[str, Column]:
    """All inputs from one JSON value: rows of the only input, an object by input name, or a list of such objects.

    `many`: see `json_column`. Raises BadRequest.
    """
    inputs = info.client_inputs
    first = inputs[0]
    if many:
        records = len(inputs) > 1 or any(by_name(row, first) for row in value)
    else:
        records = isinstance(value, list) and any(by_name(row, first) for row in value[:1])
    if records:
        return record_columns(info, value, field)
    if not many and (len(inputs) > 1 or by_name(value, first)):
        values = named_inputs(info, value, field)
        return {spec.name: json_column(spec, values[spec.name], f"{field}.{spec.name}") for spec in inputs}
    return {first.name: json_column(first, value, field, many=many)}


def record_columns(info: ModelInfo, rows: Sequence[Any], field: str) -> dict[str, Column]:
    """All inputs from a list of objects by input name, one per row. Raises BadRequest."""
    named = [named_inputs(info, row, f"{field}[{place}]") for place, row in enumerate(rows)]
    columns = {}
    for spec in info.client_inputs:
        values, where = [row[spec.name] for row in named], f"{field}[].{spec.name}"
        columns[spec.name] = json_column(spec, values, where, many=True)
    return columns


def array_columns(inputs: Sequence[TensorSpec], arrays: Mapping[str, Any], field: str) -> dict[str, Column]:
    """All inputs from arrays by input name. Raises BadRequest, and ModelFailed for what a `decode` gave as none."""
    columns = {}
    for spec in inputs:
        where = field if len(inputs) == 1 else f"{field}.{spec.name}"
        given = arrays[spec.name]
        # as Python objects, because numpy's string type drops trailing zero bytes
        kind = object if spec.datatype == "BYTES" and not isinstance(given, np.ndarray) else None
        try:
            plain = np.asarray(given, kind)
        except (ValueError, TypeError, RuntimeError) as error:  # lists of different lengths, a tensor with gradients
            raise ModelFailed(f"the model's decode returned no array for input {spec.name!r}: {error}") from error
        rows, row = _split(spec, plain.shape, where, flat=False)
        shape = check_shape(spec, (1 if rows is None else rows, *row), where, {})
        columns[spec.name] = Column([cast_array(plain, spec, where).reshape(shape)], rows is None)
    return columns


def check_rows_agree(columns: Mapping[str, Column], field: str) -> None:
    """Raise BadRequest unless all inputs have the same number of rows. One row equals a list of one."""
    rows = {name: column.rows for name, column in columns.items()}
    if len(set(rows.values())) != 1:
        raise BadRequest(f"{field}: expected the same number of rows for every input, got {shown(rows, 200)}")


def stacked(info: ModelInfo, parts: Sequence[Mapping[str, Column]], field: str) -> DecodedCall:
    """One call with the rows of all parts (files) in order.

    Within each part the inputs must have equal numbers of rows: see `check_rows_agree`. Raises BadRequest if a row's
    inputs differ in the length of an axis that they share, for too many rows, and for too much padding.
    """
    inputs = info.client_inputs
    columns = [[array for part in parts for array in part[spec.name].parts] for spec in inputs]
    rows = sum(map(len, columns[0]))
    check_rows(info, rows)
    own = _row_lengths(inputs, columns, field)
    lengths = {axis: max(each) for axis, each in own.items()}
    differ = any(len(set(each)) > 1 for each in own.values())
    if differ:
        _check_padded(inputs, rows, lengths, field)
    arrays: list[Array | memoryview] = [_padded(column) for column in columns]
    single = len(parts) == 1 and all(column.single for column in parts[0].values())
    return DecodedCall(rows, arrays, lengths, single=single, own_lengths=own if differ else None)


def _row_lengths(inputs: Sequence[TensorSpec], columns: Sequence[Sequence[Array]], field: str) -> dict[str, list[int]]:
    """The length of every row along each variable axis. Raises BadRequest if inputs disagree on it."""
    own: dict[str, list[int]] = {}
    for spec, column in zip(inputs, columns, strict=True):
        for place, axis in enumerate(spec.axes, 1):
            if not axis:
                continue
            each = [array.shape[place] for array in column for _ in array]
            before = own.setdefault(axis, each)
            if each != before:
                row = next(row for row, length in enumerate(each) if length != before[row])
                raise BadRequest(
                    f"{field}: axis {axis!r} of row {row} has length {each[row]} in input {spec.name!r}, but "
                    f"{before[row]} in an input before it"
                )
    return own


def _check_padded(inputs: Sequence[TensorSpec], rows: int, lengths: Mapping[str, int], field: str) -> None:
    """Raise BadRequest if an axis without a bound makes one long row the size of all."""
    for spec in inputs:
        row = prod(lengths[axis] if axis else length for axis, length in zip(spec.axes, spec.shape, strict=True))
        if not spec.bounded and rows * row > _MOST_PADDED:
            raise BadRequest(
                f"{field}: {rows} rows of input {spec.name!r}, padded to the longest, are more than {_MOST_PADDED} "
                "values: send the longest in a request of its own"
            )


def _padded(column: Sequence[Array]) -> Array:
    """The rows of a column as one array, padded to the longest.

    Padding is never used. It is a value of the input itself, so that its range is not checked for another; of BYTES it
    is None, so that a front can count the elements.
    """
    first = column[0]
    return joined_rows(column, None if first.dtype == object else next(first.flat, 0))


def by_name(value: object, spec: TensorSpec) -> bool:
    """Whether the JSON value for a model of one input is an object by input name, and not bytes as base64."""
    return isinstance(value, dict) and (not is_base64(value) or spec.name == "b64")


def named_inputs(info: ModelInfo, value: Any, field: str) -> dict[str, Any]:
    """A JSON object by input name, in declared order. Raises BadRequest when a name is missing or unknown."""
    names = [spec.name for spec in info.client_inputs]
    if not isinstance(value, dict) or value.keys() != set(names):
        got = f"one with {shown([*value], 200)}" if isinstance(value, dict) else shown(value)
        raise BadRequest(f"{field}: expected an object with {input_names(info.client_inputs)}, got {got}")
    return {name: value[name] for name in names}


def _measure(value: Any, depth: int) -> tuple[int, ...]:
    """The lengths of nested JSON lists, following first elements, at most `depth` + 1 levels deep."""
    dims: list[int] = []
    while isinstance(value, list) and len(dims) <= depth:
        dims.append(len(value))
        value = value[0] if value else None
    return tuple(dims)


def _check_even(value: Any, dims: tuple[int, ...], field: str) -> None:
    """Check that all lists of one level are equally long. Otherwise a row could get values of another row."""
    if len(dims) < 2:
        return
    for i, item in enumerate(value):
        if not isinstance(item, list) or len(item) != dims[1]:
            got = len(item) if isinstance(item, list) else "no list"
            raise BadRequest(f"{field}[{i}]: expected a list of {dims[1]} as in {field}[0], got {got}")
        _check_even(item, dims[1:], f"{field}[{i}]")


def _split(
    spec: TensorSpec, dims: tuple[int, ...], field: str, *, flat: bool, many: bool = False
) -> tuple[int | None, tuple[int, ...]]:
    """The number of rows in a value of these dimensions, and their shape. None: one row without a leading dimension."""
    size = prod(spec.shape)
    bare = ((size,), ()) if size == 1 else ((size,),)  # one row's values without its nesting
    flat = (flat or size == 1) and spec.fixed  # one number may always have an axis of length 1, or none
    if not many and spec.fits(dims):
        return None, dims
    if dims and spec.fits(dims[1:]):
        return dims[0], dims[1:]
    if flat and not many and dims in bare:
        return None, spec.shape
    if flat and dims and dims[1:] in bare:
        return dims[0], spec.shape
    row = spec.axes_shown()
    several = f"[{', '.join(['rows', *row])}]"
    expected = several if many else f"[{', '.join(row)}] for one row or {several} for several"
    raise BadRequest(f"{field}: expected shape {expected}, got {list(dims)}")


def input_names(inputs: Sequence[TensorSpec]) -> str:
    """The inputs' names, as messages quote them."""
    return ("input " if len(inputs) == 1 else "inputs ") + ", ".join(repr(spec.name) for spec in inputs)
