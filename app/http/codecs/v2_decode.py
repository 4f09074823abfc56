"""Decodes V2 requests of any kind: the parsed JSON, and the binary tensors after it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from app.contract import CLASSES, Array, ModelInfo, TensorSpec
from app.errors import BadRequest, TooLarge, bad_field
from app.http.codecs.base import DecodedCall
from app.http.codecs.v2_binary import from_bytes
from app.values.tensors import check_shape, pack_values, shown

#: Parameters that Triton reserves for features that this server does not have: of a request, and of an input or output.
#: A request that sets one is refused, because it would not get the answer that it asks for.
_UNSUPPORTED = frozenset({"sequence_id", "sequence_start", "sequence_end"})
_UNSUPPORTED_TENSOR = frozenset(
    {"shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification"}
)
_LONGEST_NAME = 60  # characters that a message quotes of a tensor's name, if it is not a known one
_LONGEST_PATH = 2048  # characters
_DEEPEST = 1000  # lists and objects within one another
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_NAMED = 20  # unsupported parameters that a message lists
_RESERVED = _UNSUPPORTED | {"priority", "timeout", "total_timeout", "class", "binary_data_output"}
MAX_PRIORITY = (1 << 31) - 1
MAX_TIMEOUT_US = 1 << 53
#: Start and end of each input in the bytes after the JSON, in declared order.
Spans = list[tuple[int, int]]


def decode_request(request: dict[str, Any], tail: memoryview, info: ModelInfo) -> tuple[DecodedCall, Spans | None]:
    """Decode any request. `tail`: the bytes after the JSON. Returns the call, and the spans of its inputs in `tail` if
    all are binary, else None.

    Like Triton, ignores unknown fields: KServe's clients send `model_name`. Raises BadRequest that names the field.
    """
    call = DecodedCall(0, [], {})
    take_parameters(request, call)
    spans = _decode_inputs(request, tail, info, call)
    call.outputs = _requested(request, info.outputs)
    return call, spans


def too_much_json(where: str, limit: int, size: int, info: ModelInfo) -> TooLarge:
    """The error for a body with too much JSON. Its message shows how to send the same as binary, and as a file."""
    specs, inputs = info.client_inputs, []
    for spec in specs:
        shape = [1, *(bound or 1 for bound in spec.bounds)]
        row_bytes = math.prod(shape) * (4 if spec.datatype == "BYTES" else spec.dtype.itemsize)
        parameters = {"binary_data_size": row_bytes}
        inputs.append({"name": spec.name, "shape": shape, "datatype": spec.datatype, "parameters": parameters})
    head = orjson.dumps({"inputs": inputs}).decode()
    message = (
        f"{where}: expected at most {limit} bytes of JSON (--max-json-mib), got {size}; send tensors as binary: "
        f"POST /v2/models/{info.name}/infer with the header Inference-Header-Content-Length: {len(head)} and the body "
        f"{head} followed by the tensors' bytes, for one row"
    )
    if any(spec.datatype == "BYTES" for spec in specs):
        message += " of empty elements: each is its length as a uint32, and its bytes"
    if len(specs) == 1:
        file = "a file" if specs[0].datatype == "BYTES" else "an .npy file, or one that the model decodes,"
        message += f"; or {file} as the body of POST /predict/{info.name}"
    return TooLarge(message)


def load_json(text: bytes, field: str = "body") -> Any:
    """Parse JSON. Raises BadRequest that names the mistake and, if possible, the field."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        return read_again(text, exc, field)


def read_again(text: bytes, error: orjson.JSONDecodeError, field: str = "body") -> Any:
    """An indented text of many short values, for which orjson had too little memory. Raises BadRequest for any other.

    Within a list, orjson does not take it for an indented one.
    """
    with suppress(ValueError):
        (value,) = orjson.loads(b"[%b]" % text)
        return value
    raise BadRequest(_why_not_json(text, error, field))


def _why_not_json(text: bytes, error: orjson.JSONDecodeError, field: str) -> str:
    """Why orjson refused a body. The standard library accepts NaN, so parsing again with it can locate the value."""
    try:
        value = json.loads(text)
        inputs = value.get("inputs") if isinstance(value, dict) else None
        for index, tensor in enumerate(inputs if isinstance(inputs, list) else []):
            data = tensor.get("data") if isinstance(tensor, dict) else None
            if (found := _no_json(data)) is not None:
                return f"{_place('inputs', index, tensor)}.data{': '.join(found)}; or the tensor as binary"
        found = _no_json(value)
    except RecursionError:
        return f"{field}: JSON is nested too deeply"
    except ValueError:
        found = None
    if found is None:
        binary = b"binary_data_size" in text
        hint = "; Inference-Header-Content-Length is to say where binary tensors begin" if binary else ""
        return f"{field}: not valid JSON: {error}{hint}"
    return f"{field}{': '.join(found)}, or the tensor as binary, with V2"


def _no_json(value: Any, depth: int = 0) -> tuple[str, str] | None:
    """The path of a value that is not JSON, and what to send instead; None if there is none. RecursionError if it is
    nested deeper than orjson reads; before Python 3.13 the standard library raises that itself."""
    if isinstance(value, float) and not math.isfinite(value):
        return "", f"{json.dumps(value)} is not JSON; send a number"
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return "", 'a lone surrogate is not JSON; send bytes as {"b64": ...}'
    if not isinstance(value, dict | list):
        return None
    if depth == _DEEPEST:
        raise RecursionError
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        if (found := _no_json(one, depth + 1)) is not None:
            step = f"[{key}]" if isinstance(value, list) else f".{str(key)[:_LONGEST_NAME]}"
            return (step + found[0])[:_LONGEST_PATH], found[1]
    return None


def _place(kind: str, index: int, tensor: object) -> str:
    """The path of a tensor in messages, with its (unchecked) name if it has one."""
    name = tensor.get("name") if type(tensor) is dict else None
    return f"{kind}[{index}] ({name[:_LONGEST_NAME]})" if type(name) is str else f"{kind}[{index}]"


def parameters_of(
    request: Mapping[str, Any], value: Any, where: str, unsupported: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The parameters of a request, an input or an output that are not null. Raises BadRequest."""
    if value is None:
        return {}
    if type(value) is not dict:
        raise BadRequest(f"{where}: expected an object")
    if not unsupported.isdisjoint(value):
        _check_supported(request)
    # Typed clients write null for what they do not set.
    return {name: one for name, one in value.items() if one is not None}


def _check_supported(request: Mapping[str, Any]) -> None:
    """Raise BadRequest if the request sets unsupported parameters. The message names all of them.

    Only called if one was found. A value that asks for nothing, such as `"sequence_id": 0`, is allowed.
    """
    found = _set_among(request.get("parameters"), _UNSUPPORTED, "parameters")
    for kind in ("inputs", "outputs"):
        tensors = request.get(kind)
        for index, tensor in enumerate(tensors if type(tensors) is list else ()):
            parameters = tensor.get("parameters") if type(tensor) is dict else None
            found += _set_among(parameters, _UNSUPPORTED_TENSOR, f"{_place(kind, index, tensor)}.parameters")
    if found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise BadRequest(f"{', '.join(found[:_MOST_NAMED])}{more}: not supported by this server")


def _set_among(parameters: object, reserved: frozenset[str], where: str) -> list[str]:
    """The paths of all given `reserved` parameters, if at least one has a true value."""
    if type(parameters) is not dict:
        return []
    given = [name for name in parameters if name in reserved]
    return [f"{where}.{name}" for name in given] if any(parameters[name] for name in given) else []


def may_name_class(body: bytes) -> bool:
    """A quick check whether the parameters in a body may name a class. True may be wrong, False never is."""
    return b'"class"' in body or b"\\u" in body  # JSON may escape any character


def take_parameters(request: dict[str, Any], call: DecodedCall) -> None:
    """Set the id and the parameters of a request in the call: V2's, and the model's own. Raises BadRequest."""
    call.id = request.get("id")
    if call.id is not None and type(call.id) is not str:
        raise BadRequest("id: expected a string")
    parameters = parameters_of(request, request.get("parameters"), "parameters", _UNSUPPORTED)
    if not parameters:
        return
    call.priority = _integer(parameters.get("priority", 0), MAX_PRIORITY, "parameters.priority")
    call.timeout_us = _integer(parameters.get("timeout", 0), MAX_TIMEOUT_US, "parameters.timeout") or None
    total = _integer(parameters.get("total_timeout", 0), MAX_TIMEOUT_US, "parameters.total_timeout")
    call.total_timeout_us = total or None
    if "class" in parameters:
        name = parameters["class"]
        if type(name) is not str or name not in CLASSES:
            raise BadRequest(f"parameters.class: expected {' or '.join(CLASSES)}, got {shown(name)}")
        call.klass = CLASSES[name]
    rest = {name: value for name, value in parameters.items() if name not in _RESERVED}
    call.parameters = rest or None


def _integer(value: object, top: int, where: str) -> int:
    if type(value) is not int or not 0 <= value <= top:
        raise BadRequest(f"{where}: expected an integer from 0 to {top}, got {shown(value)}")
    return value


def flag(fields: Mapping[str, Any], name: str, field: str) -> bool:
    """A field of `fields`; absent or null is false. Raises BadRequest that calls it `field`."""
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        raise bad_field(field, f"expected true or false, got {shown(value)}")
    return bool(value)


def _decode_inputs(request: dict[str, Any], tail: memoryview, info: ModelInfo, call: DecodedCall) -> Spans | None:
    """Set the call's rows, lengths and arrays. Returns the spans of the inputs in `tail` if all are binary."""
    inputs = request.get("inputs")
    if type(inputs) is not list:
        raise BadRequest("inputs: expected a list of tensors")
    found: dict[str, Array | memoryview] = {}
    spans: dict[str, tuple[int, int]] = {}
    specs = {spec.name: spec for spec in info.client_inputs}
    offset = 0
    for index, tensor in enumerate(inputs):
        spec = _spec_of(tensor, specs, index)
        where = f"inputs[{index}] ({spec.name})"
        if spec.name in found:
            raise BadRequest(f"{where}.name: given twice")
        if tensor.get("datatype") != spec.datatype:
            raise BadRequest(f"{where}.datatype: expected {spec.datatype}, got {shown(tensor.get('datatype'))}")
        dims = tensor.get("shape")
        if type(dims) is not list:
            raise BadRequest(f"{where}.shape: expected a list of integers")
        shape = check_shape(spec, dims, f"{where}.shape", call.lengths)
        if call.rows and shape[0] != call.rows:
            raise BadRequest(f"{where}.shape: {shape[0]} rows, but {call.rows} in the inputs before it")
        call.rows = shape[0]
        size = _binary_size(request, tensor, where)
        if size is None:
            if tensor.get("data") is None:
                raise BadRequest(f"{where}.data: missing, and no parameters.binary_data_size")
            found[spec.name] = pack_values(tensor["data"], spec, shape, f"{where}.data")
        else:
            if offset + size > len(tail):
                left = len(tail) - offset
                raise BadRequest(f"{where}.parameters.binary_data_size: {size} bytes, but the body has {left} left")
            found[spec.name] = from_bytes(tail[offset : offset + size], spec, shape, where)
            spans[spec.name] = (offset, offset + size)
            offset += size
    if offset != len(tail):
        raise BadRequest(f"body: {len(tail) - offset} bytes are left over after the last tensor")
    if len(found) != len(specs):
        missing = next(name for name in specs if name not in found)
        raise BadRequest(f"inputs: {missing!r} is missing; expected {', '.join(specs)}")
    call.arrays = [found[name] for name in specs]
    return [spans[name] for name in specs] if len(spans) == len(specs) else None


def _spec_of(tensor: object, specs: Mapping[str, TensorSpec], index: int) -> TensorSpec:
    if type(tensor) is not dict:
        raise BadRequest(f"inputs[{index}]: expected an object with name, shape, datatype and data")
    name = tensor.get("name")
    spec = specs.get(name) if type(name) is str else None
    if spec is None:
        raise BadRequest(f"inputs[{index}].name: expected one of {', '.join(specs)}, got {shown(name)}")
    return spec


def _binary_size(request: dict[str, Any], tensor: dict[str, Any], where: str) -> int | None:
    parameters = parameters_of(request, tensor.get("parameters"), f"{where}.parameters", _UNSUPPORTED_TENSOR)
    if "binary_data_size" not in parameters:
        return None
    if tensor.get("data") is not None:
        raise BadRequest(f"{where}: has both data and parameters.binary_data_size")
    return _integer(parameters["binary_data_size"], 1 << 53, f"{where}.parameters.binary_data_size")


def _requested(request: dict[str, Any], specs: Sequence[TensorSpec]) -> list[tuple[int, bool]]:
    """The requested outputs; all if none is named. BF16 has no JSON form, so it is always binary."""
    outputs = request.get("outputs")
    binary = flag(request.get("parameters") or {}, "binary_data_output", "parameters.binary_data_output")
    index_of = {spec.name: index for index, spec in enumerate(specs)}
    if outputs is not None and type(outputs) is not list:
        raise BadRequest("outputs: expected a list")
    asked: dict[int, bool] = {} if outputs else dict.fromkeys(index_of.values(), binary)
    for position, output in enumerate(outputs or ()):
        if type(output) is not dict:
            raise BadRequest(f"outputs[{position}]: expected an object with name")
        name = output.get("name")
        if type(name) is not str or name not in index_of:
            raise BadRequest(f"outputs[{position}].name: expected one of {', '.join(index_of)}, got {shown(name)}")
        where = f"outputs[{position}] ({name})"
        if index_of[name] in asked:
            raise BadRequest(f"{where}.name: asked for twice")
        parameters = parameters_of(request, output.get("parameters"), f"{where}.parameters", _UNSUPPORTED_TENSOR)
        given = {"binary_data": binary, **parameters}
        asked[index_of[name]] = flag(given, "binary_data", f"{where}.parameters.binary_data")
    return [(index, as_binary or specs[index].datatype == "BF16") for index, as_binary in asked.items()]
