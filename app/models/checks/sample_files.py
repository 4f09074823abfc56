"""Real rows from the file that `[warmup]` in model.toml names: V2 request bodies (.json) or arrays by input (.npz).

Everything wrong with the file becomes a ConfigError `FILE: KEY: expected ..., got ...`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from app.contract import FLOATS, Array, ModelInfo, SampleRow, TensorSpec
from app.errors import ConfigError
from app.models.base import to_bits

_MOST_ROWS = 256  # read from a file; a batch is made of fewer


def read_samples(path: Path, info: ModelInfo) -> tuple[SampleRow, ...]:
    """The rows of the file, the first 256 of them. Raises ConfigError naming the file."""
    try:
        rows = _read_arrays(path, info) if path.suffix == ".npz" else _read_requests(path, info)
    except _WrongError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, ValueError, OverflowError, EOFError, zipfile.BadZipFile, RecursionError) as error:
        raise ConfigError(f"{path}: expected a readable {path.suffix} file: {error}") from None
    return tuple(rows[:_MOST_ROWS])


class _WrongError(Exception):
    """A message `KEY: expected ..., got ...`."""


def _read_arrays(path: Path, info: ModelInfo) -> list[SampleRow]:
    with path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise _WrongError("expected arrays written by numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: _loaded(file, name) for name in file.files}
    return _rows(arrays, info, "", {})


def _loaded(file: Mapping[str, Array], name: str) -> Array:
    try:
        return file[name]
    except ValueError:
        raise _WrongError(f"{name}: expected numbers or text of one length each, got Python objects") from None


def _read_requests(path: Path, info: ModelInfo) -> list[SampleRow]:
    bodies = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(bodies, dict):
        return _request(bodies, info, "")
    if not isinstance(bodies, list) or not bodies:
        raise _WrongError(f"expected a V2 request body or a list of them, got {_shown(bodies)}")
    return [row for index, body in enumerate(bodies) for row in _request(body, info, f"[{index}].")]


def _request(body: Any, info: ModelInfo, where: str) -> list[SampleRow]:
    tensors = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(tensors, list):
        raise _WrongError(f"{where}inputs: expected a list of tensors, got {_shown(tensors)}")
    parameters = body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise _WrongError(f"{where}parameters: expected an object, got {_shown(parameters)}")
    specs = {spec.name: spec for spec in info.client_inputs}
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(tensors):
        at = f"{where}inputs[{index}]"
        name = tensor.get("name") if isinstance(tensor, dict) else None
        if not isinstance(name, str) or name not in specs:
            raise _WrongError(f"{at}.name: expected one of {', '.join(specs)}, got {_shown(name)}")
        arrays[name] = _tensor(tensor, specs[name], at)
    return _rows(arrays, info, f"{where}inputs: ", parameters)


def _tensor(tensor: Mapping[str, Any], spec: TensorSpec, at: str) -> Array:
    datatype, shape = tensor.get("datatype", spec.datatype), tensor.get("shape")
    if datatype != spec.datatype:
        raise _WrongError(f"{at}.datatype: expected {spec.datatype}, got {_shown(datatype)}")
    if not isinstance(shape, list) or not all(type(length) is int and length > 0 for length in shape):
        raise _WrongError(f"{at}.shape: expected a list of lengths, rows first, got {_shown(shape)}")
    if not isinstance(tensor.get("data"), list):
        raise _WrongError(f"{at}.data: expected a list of values, got {_shown(tensor.get('data'))}")
    try:
        values: Array = np.array(tensor["data"], object if spec.datatype == "BYTES" else None)
    except ValueError:
        raise _WrongError(f"{at}.data: expected flat values, or nested as the shape says") from None
    if values.size != prod(shape):
        raise _WrongError(f"{at}.data: expected {prod(shape)} values for shape {shape}, got {values.size}")
    return values.reshape(shape)


def _rows(arrays: Mapping[str, Array], info: ModelInfo, where: str, parameters: Mapping[str, Any]) -> list[SampleRow]:
    """Arrays by input name, rows first, as rows; every input is there and they fit together."""
    names = [spec.name for spec in info.client_inputs]
    unknown = sorted(set(arrays) - set(names))
    if unknown or set(arrays) != set(names):
        missing = [name for name in names if name not in arrays]
        got = f"{unknown[0]!r}" if unknown else f"none of {missing[0]!r}"
        raise _WrongError(f"{where}expected the inputs {', '.join(names)}, got {got}")
    lengths: dict[str, int] = {}
    counts = {name: (array.shape or (0,))[0] for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        found = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise _WrongError(f"{where}expected one number of rows, at least 1, in all inputs, got {found}")
    taken = [_fitted(arrays[spec.name], spec, where, lengths) for spec in info.client_inputs]
    return [
        SampleRow(tuple(np.array(values[row], values.dtype) for values in taken), dict(lengths), parameters)
        for row in range(counts[names[0]])
    ]


def _fitted(values: Array, spec: TensorSpec, where: str, lengths: dict[str, int]) -> Array:
    """The array in the input's own dtype, its shape and values checked; lengths of variable axes are noted."""
    at = f"{where}{spec.name}"
    expected = ", ".join(spec.axes_shown())
    if len(values.shape) != len(spec.shape) + 1:
        raise _WrongError(f"{at}: expected shape [rows, {expected}], got {list(values.shape)}")
    for axis, bound, length in zip(spec.axes, spec.bounds, values.shape[1:], strict=True):
        if not (1 <= length <= (bound or length) if axis else length == bound):
            raise _WrongError(f"{at}: expected shape [rows, {expected}], got {list(values.shape)}")
        if axis and lengths.setdefault(axis, length) != length:
            raise _WrongError(
                f"{at}: expected length {lengths[axis]} of axis {axis!r}, as in another input, got {length}"
            )
    return _typed(values, spec, at)


def _typed(values: Array, spec: TensorSpec, at: str) -> Array:
    if spec.datatype == "BYTES":
        return _texts(values, at)
    wanted = spec.datatype
    if spec.datatype == "BF16" and values.dtype == np.uint16:
        return values  # its bits
    kinds = "iub" if wanted not in FLOATS else "iubf"
    if values.dtype.kind not in kinds:
        raise _WrongError(f"{at}: expected values of {wanted}, got {values.dtype}")
    if wanted in FLOATS:
        numbers = values.astype(np.float64)
        return to_bits(numbers.astype(np.float32)) if wanted == "BF16" else numbers.astype(spec.dtype)
    low, high = (0, 1) if wanted == "BOOL" else (int(np.iinfo(spec.dtype).min), int(np.iinfo(spec.dtype).max))
    low = low if spec.minimum is None else spec.minimum
    high = high if spec.maximum is None else spec.maximum
    least, largest = int(values.min()), int(values.max())
    if least < low or largest > high:
        raise _WrongError(f"{at}: expected values from {low} to {high}, got {least if least < low else largest}")
    return values.astype(spec.dtype)


def _texts(values: Array, at: str) -> Array:
    if values.dtype.kind not in "OSU":
        raise _WrongError(f"{at}: expected text, got {values.dtype}")
    flat = [value.encode() if isinstance(value, str) else value for value in values.reshape(-1).tolist()]
    for value in flat:
        if not isinstance(value, bytes):
            raise _WrongError(f"{at}: expected text, got {_shown(value)}")
    texts: Array = np.empty(len(flat), object)
    texts[:] = flat
    return texts.reshape(values.shape)


def _shown(value: object) -> str:
    text = "none" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."
