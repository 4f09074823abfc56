"""The friendly route's body in and answer out: one JSON value, a file or plain text, and JSON back.

Pure functions. JSON and .npy always are the model's inputs themselves; any other type goes to the model's own
`decode`. What one row is follows from the spec: a value of exactly one row's shape is one row and is answered by one
value; one more leading dimension means several rows and is answered by a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson

from app.api.codecs.tensors import check_shape, parse_values, shown, to_json
from app.api.codecs.uploads import Upload, check_pixels, open_upload, read_npy
from app.contract import Array, ModelInfo, Served, TensorSpec
from app.errors import BadRequest, ModelFailed, OutputNotJson, StarlingError, TooLarge, UnsupportedMedia


@dataclass(frozen=True, slots=True)
class FriendlyCall:
    """One array per input in declared order, `rows` leading; `lengths` of the named axes, as a lease wants them.

    `single`: the caller gave one row without a leading dimension, and gets one value and no list.
    """

    arrays: list[Array]
    rows: int
    single: bool
    lengths: dict[str, int]


@dataclass(frozen=True, slots=True)
class Column:
    """One input's rows, and whether they came as one row without a leading dimension."""

    array: Array
    single: bool


def decode_friendly(
    served: Served, content_type: str | None, body: bytes, *, max_pixels: int, max_json: int | None = None
) -> FriendlyCall:
    """The inputs that a friendly body means.

    `max_json` bounds JSON in bytes, also inside a multipart upload. Raises BadRequest, TooLarge or UnsupportedMedia;
    whatever the model's `decode` raises that is not an error of ours is a BadRequest with its message. May be slow
    (images, large JSON): not for the event loop.
    """
    upload = open_upload(content_type, body)
    info = served.info
    if upload.kind == "json":
        if max_json is not None and len(upload.data) > max_json:
            raise TooLarge(f"{upload.field}: expected at most {max_json} bytes of JSON, got {len(upload.data)}")
        return _from_json(info, upload)
    if upload.kind == "npy":
        if len(info.inputs) != 1:
            raise BadRequest(f"{upload.field}: an .npy file is one array, but model {info.name} has {_names(info)}")
        return _from_arrays(info, {info.inputs[0].name: read_npy(upload.data, upload.field)}, upload.field)
    decode = served.model.decode
    if decode is None or upload.kind == "unknown":
        raise UnsupportedMedia(_unsupported(info, upload, decodes=decode is not None))
    check_pixels(upload, max_pixels)
    try:
        arrays = decode(upload.media, upload.data)
    except StarlingError:
        raise
    except Exception as exc:  # the boundary to model code: what it cannot decode is the caller's to mend
        raise BadRequest(f"{upload.field}: {exc or type(exc).__name__}") from exc
    if not isinstance(arrays, Mapping) or set(arrays) != {spec.name for spec in info.inputs}:
        raise ModelFailed(f"model {info.name}: its decode did not return one array for each of {_names(info)}")
    return _from_arrays(info, arrays, upload.field)


def present_friendly(served: Served, outputs: Sequence[Array], call: FriendlyCall) -> Any:
    """The answer, as something orjson encodes with OPT_SERIALIZE_NUMPY: one value, or a list with one per row.

    Raises OutputNotJson on NaN and infinities, also in what the model's `present` returns, and ModelFailed when that
    raises or returns what JSON has not.
    """
    info = served.info
    present = served.model.present
    if present is None:
        columns = [(spec, json_rows(spec, array)) for spec, array in zip(info.outputs, outputs, strict=True)]
        rows = [{spec.name: _labelled(spec, column[row]) for spec, column in columns} for row in range(call.rows)]
    else:
        rows = []
        for row in range(call.rows):
            named = {spec.name: array[row] for spec, array in zip(info.outputs, outputs, strict=True)}
            try:
                value = present(named)
            except StarlingError:
                raise
            except Exception as exc:  # the boundary to model code
                raise ModelFailed(f"model {info.name}: its present failed: {exc or type(exc).__name__}") from exc
            rows.append(_plain(value, info.name, "answer"))
    return rows[0] if call.single else rows


def json_rows(spec: TensorSpec, array: Array) -> Any:
    """An output's rows as `to_json` has them; BF16 as the numbers that its bits mean."""
    if spec.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return to_json(array, spec.name)


def json_column(spec: TensorSpec, value: Any, field: str, lengths: dict[str, int], *, many: bool = False) -> Column:
    """One input from a JSON value: one row or, with one more leading dimension, several, nested or each row flat.

    `many` says that the leading dimension is there, which leaves no choice. Raises BadRequest.
    """
    dims = _measure(value, len(spec.shape) + 1)
    rows, row = _split(spec, dims, field, flat=True, many=many)
    _check_even(value, dims, field)
    shape = check_shape(spec, (1 if rows is None else rows, *row), field, lengths)
    data = value if isinstance(value, list) else [value]
    return Column(parse_values(data, spec, shape, field), rows is None)


def joined(columns: Mapping[str, Column], lengths: dict[str, int], field: str) -> FriendlyCall:
    """Inputs in declared order to one call; they must agree on the rows."""
    counts = {name: None if column.single else len(column.array) for name, column in columns.items()}
    if len(set(counts.values())) != 1:
        said = ", ".join(f"{name} {'one row' if n is None else f'a list of {n}'}" for name, n in counts.items())
        raise BadRequest(f"{field}: expected the same number of rows for every input, got {said}")
    first = next(iter(columns.values()))
    return FriendlyCall([column.array for column in columns.values()], len(first.array), first.single, lengths)


def named_inputs(info: ModelInfo, value: Any, field: str) -> dict[str, Any]:
    """A JSON object by input name, in declared order. Raises BadRequest when a name is missing or unknown."""
    if not isinstance(value, dict):
        raise BadRequest(f"{field}: expected an object with {_names(info)}")
    names = [spec.name for spec in info.inputs]
    for name in names:
        if name not in value:
            raise BadRequest(f"{field}: input {name!r} is missing; expected an object with {_names(info)}")
    unknown = next((name for name in value if name not in names), None)
    if unknown is not None:
        raise BadRequest(f"{field}: unknown input {shown(unknown)}; expected an object with {_names(info)}")
    return {name: value[name] for name in names}


def _from_json(info: ModelInfo, upload: Upload) -> FriendlyCall:
    try:
        value = orjson.loads(upload.data)
    except orjson.JSONDecodeError as exc:
        raise BadRequest(f"{upload.field}: not valid JSON: {exc}") from None
    if len(info.inputs) > 1 or isinstance(value, dict):
        values = named_inputs(info, value, upload.field)
        fields = {name: f"{upload.field}.{name}" for name in values}
    else:
        values = {info.inputs[0].name: value}
        fields = {info.inputs[0].name: upload.field}
    lengths: dict[str, int] = {}
    columns = {spec.name: json_column(spec, values[spec.name], fields[spec.name], lengths) for spec in info.inputs}
    return joined(columns, lengths, upload.field)


def _from_arrays(info: ModelInfo, arrays: Mapping[str, Any], field: str) -> FriendlyCall:
    lengths: dict[str, int] = {}
    columns = {}
    for spec in info.inputs:
        where = field if len(info.inputs) == 1 else f"{field}.{spec.name}"
        given = arrays[spec.name]
        # numpy's own strings drop trailing zero bytes, so that text stays Python objects
        plain = np.asarray(given, object if spec.datatype == "BYTES" and not isinstance(given, np.ndarray) else None)
        rows, row = _split(spec, plain.shape, where, flat=False)
        shape = check_shape(spec, (1 if rows is None else rows, *row), where, lengths)
        columns[spec.name] = Column(cast_array(plain, spec, where).reshape(shape), rows is None)
    return joined(columns, lengths, field)


def cast_array(array: Array, spec: TensorSpec, field: str) -> Array:
    """`array` as the spec's dtype where that loses no more than float precision. Raises BadRequest otherwise."""
    if spec.datatype == "BYTES":
        return _as_bytes(array, field)
    target, source = spec.dtype, array.dtype
    kinds = {"b": "biuf", "i": "iuf", "u": "iuf", "f": "f"}.get(source.kind, "")
    if target.kind not in kinds or (spec.datatype == "BF16" and source.newbyteorder("<") != target):
        raise BadRequest(f"{field}: expected values that fit {spec.datatype}, got dtype {source}")
    if target.kind in "iu" and source.kind in "iu" and not np.can_cast(source, target, "safe") and array.size:
        limits = np.iinfo(target)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise BadRequest(f"{field}: a value is out of range for {spec.datatype}")
    with np.errstate(over="ignore"):
        cast = array.astype(target, copy=False)
    if target.kind == "f" and target.itemsize < source.itemsize and np.any(np.isinf(cast) & np.isfinite(array)):
        raise BadRequest(f"{field}: a value is out of range for {spec.datatype}")
    return cast


def _as_bytes(array: Array, field: str) -> Array:
    result = np.empty(array.size, object)
    for i, value in enumerate(array.flat):
        if not isinstance(value, str | bytes):
            raise BadRequest(f"{field}: expected strings, got dtype {array.dtype}")
        result[i] = value.encode() if isinstance(value, str) else bytes(value)
    return result.reshape(array.shape)


def _measure(value: Any, depth: int) -> tuple[int, ...]:
    """The nested lengths of a JSON value down its first elements, at most `depth` + 1 of them."""
    dims: list[int] = []
    while isinstance(value, list) and len(dims) <= depth:
        dims.append(len(value))
        value = value[0] if value else None
    return tuple(dims)


def _check_even(value: Any, dims: tuple[int, ...], field: str) -> None:
    """Every list as long as the first one beside it: a right total alone could give one row another's values."""
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
    """How many rows a value of these dimensions is (None: one, without a leading dimension), and one row's shape."""
    size = prod(spec.shape)
    bare = ((size,), ()) if size == 1 else ((size,),)  # one row's values without its nesting
    flat = flat and spec.fixed
    if not many and _fits(spec, dims):
        return None, dims
    if dims and _fits(spec, dims[1:]):
        return dims[0], dims[1:]
    if flat and not many and dims in bare:
        return None, spec.shape
    if flat and dims and dims[1:] in bare:
        return dims[0], spec.shape
    row = [f"{axis} <= {bound}" if axis else str(bound) for axis, bound in zip(spec.axes, spec.bounds, strict=True)]
    several = f"[{', '.join(['rows', *row])}]"
    expected = several if many else f"[{', '.join(row)}] for one row or {several} for several"
    raise BadRequest(f"{field}: expected shape {expected}, got {list(dims)}")


def _fits(spec: TensorSpec, row: tuple[int, ...]) -> bool:
    return len(row) == len(spec.shape) and all(
        axis or length == expected for axis, length, expected in zip(spec.axes, row, spec.shape, strict=True)
    )


def _labelled(spec: TensorSpec, value: Any) -> Any:
    """A vector of scores with its top label, where the output has one label for each."""
    if not spec.labels or np.shape(value) != (len(spec.labels),) or spec.datatype == "BYTES":
        return value
    return {"label": spec.labels[int(np.argmax(value))], "scores": value}


def _plain(value: Any, model: str, path: str) -> Any:
    """What `present` returned, checked to be JSON: orjson alone would write NaN as null."""
    if isinstance(value, np.ndarray):
        return to_json(value, path)
    if isinstance(value, float | np.floating):
        if not np.isfinite(value):
            raise OutputNotJson(f"model {model}: {path} is NaN or infinite, which JSON has not: ask V2 for binary")
        return value  # a float32 stays one, so that 0.1 is written 0.1
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return to_json(np.array([value], object), path)[0]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, model, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, model, f"{path}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ModelFailed(f"model {model}: its present returned a {type(value).__name__} at {path}, which JSON has not")


def _unsupported(info: ModelInfo, upload: Upload, *, decodes: bool) -> str:
    takes = ["application/json"]
    if len(info.inputs) == 1:
        takes.append("application/x-npy")
    if decodes:
        takes.append("what its decoder reads, such as image/png, image/jpeg or text/plain, named by Content-Type")
    came = f"content type {upload.media!r}" if upload.kind == "other" else "a body whose type is not named or known"
    return f"{upload.field}: expected {', '.join(takes)} for model {info.name}, got {came}"


def _names(info: ModelInfo) -> str:
    return ("input " if len(info.inputs) == 1 else "inputs ") + ", ".join(repr(spec.name) for spec in info.inputs)
