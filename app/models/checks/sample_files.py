"""Reads real rows from the file that `[warmup]` in model.toml names: V2 requests (.json), or arrays by input (.npz).

Values are checked as those of requests are. Faults become a ConfigError that names the file.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from app.contract import Array, ModelInfo, SampleRow, TensorSpec
from app.errors import BadRequest, ConfigError
from app.models.base import to_bits
from app.models.model_files import file_at
from app.values.arrays import cast_array, check_range
from app.values.tensors import check_shape, parse_values, shown

_MOST_ROWS = 256  # read from a file; a batch is made of fewer

#: Returns the array of an input, and adds the lengths of its variable axes to the dict.
_Read = Callable[[TensorSpec, dict[str, int]], Array]


def read_samples(path: Path, info: ModelInfo) -> tuple[SampleRow, ...]:
    """The rows of the file, the first 256 of them. Raises ConfigError naming the file."""
    try:
        file_at(path)
        rows = _of_arrays(path, info) if path.suffix == ".npz" else _of_requests(path, info)
    except BadRequest as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, ValueError, OverflowError, EOFError, zipfile.BadZipFile, RecursionError) as error:
        raise ConfigError(f"{path}: expected a readable {path.suffix} file: {error}") from None
    return tuple(rows[:_MOST_ROWS])


def _of_arrays(path: Path, info: ModelInfo) -> list[SampleRow]:
    with path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise BadRequest("expected arrays written by numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    def read(spec: TensorSpec, lengths: dict[str, int]) -> Array:
        values = arrays[spec.name]
        shape = check_shape(spec, values.shape, spec.name, lengths)

        def cast(of: TensorSpec) -> Array:
            return cast_array(values, of, spec.name).reshape(shape)

        return cast(spec) if values.dtype == spec.dtype else _of_numbers(spec, cast)  # BF16 may be its bits

    return _rows(info, arrays, read, "", {})


def _of_requests(path: Path, info: ModelInfo) -> list[SampleRow]:
    bodies = json.loads(path.read_text(encoding="utf-8-sig"))
    if isinstance(bodies, dict):
        return _of_request(bodies, info, "")
    if not isinstance(bodies, list) or not bodies:
        raise BadRequest(f"expected a V2 request body or a list of them, got {shown(bodies)}")
    return [row for index, body in enumerate(bodies) for row in _of_request(body, info, f"[{index}].")]


def _of_request(body: Any, info: ModelInfo, where: str) -> list[SampleRow]:
    given = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(given, list) or not all(isinstance(tensor, dict) for tensor in given):
        raise BadRequest(f"{where}inputs: expected a list of tensors, got {shown(given)}")
    parameters = body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BadRequest(f"{where}parameters: expected an object, got {shown(parameters)}")
    tensors = {tensor.get("name"): tensor for tensor in given}

    def read(spec: TensorSpec, lengths: dict[str, int]) -> Array:
        at, tensor = f"{where}inputs ({spec.name})", tensors[spec.name]
        datatype, shape = tensor.get("datatype", spec.datatype), tensor.get("shape")
        if datatype != spec.datatype:
            raise BadRequest(f"{at}.datatype: expected {spec.datatype}, got {shown(datatype)}")
        if not isinstance(shape, list):
            raise BadRequest(f"{at}.shape: expected a list of lengths, rows first, got {shown(shape)}")
        checked = check_shape(spec, shape, f"{at}.shape", lengths)
        return _of_numbers(spec, lambda numbers: parse_values(tensor.get("data"), numbers, checked, f"{at}.data"))

    return _rows(info, tensors, read, f"{where}inputs: ", parameters)


def _of_numbers(spec: TensorSpec, read: Callable[[TensorSpec], Array]) -> Array:
    """`read(spec)`; BF16, which numpy does not have, is read as FP32 and converted."""
    if spec.datatype != "BF16":
        return read(spec)
    return to_bits(read(replace(spec, datatype="FP32")).copy())


def _rows(
    info: ModelInfo, given: Mapping[str, Any], read: _Read, where: str, parameters: Mapping[str, Any]
) -> list[SampleRow]:
    """The rows of a request, or of the file, whose inputs are `given` by name. Raises BadRequest."""
    specs = info.client_inputs
    names = [spec.name for spec in specs]
    if set(given) != set(names):
        unknown = sorted(set(map(repr, given)) - set(map(repr, names)))
        got = unknown[0] if unknown else f"none of {next(name for name in names if name not in given)!r}"
        raise BadRequest(f"{where}expected the inputs {', '.join(names)}, got {got}")
    lengths: dict[str, int] = {}
    arrays = [read(spec, lengths) for spec in specs]
    if len(set(map(len, arrays))) != 1:
        found = ", ".join(f"{len(array)} of {name!r}" for name, array in zip(names, arrays, strict=True))
        raise BadRequest(f"{where}expected one number of rows in all inputs, got {found}")
    for spec, array in zip(specs, arrays, strict=True):
        check_range(spec, array)
    return [
        SampleRow(tuple(np.array(array[row], array.dtype) for array in arrays), dict(lengths), parameters)
        for row in range(len(arrays[0]))
    ]
