"""Makes inference requests from a model's metadata: random data, encoded once as the bytes to send.

A leading axis of -1 is the batch; any other -1 is the request's length. Values suit most models: small integers, which
are tokens of every vocabulary; ones if the name ends in "mask"; zeros if it contains "type", for segments. Users can
give shapes, whole V2 requests, or a file of any other type, which is sent unchanged to the friendly route.
"""

from __future__ import annotations

import json
import math
import mimetypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import orjson

from planner.drawn_lengths import Lengths

from .plan import BenchPlan

BODIES = 64  # enough for a distribution of lengths, few enough to remember their answers

#: V2 datatype -> numpy's; BF16 is made of FP32, BYTES of objects.
DTYPES: dict[str, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BF16": "<f4", "BYTES": "O",
}  # fmt: skip
_V2_FILES = ("", ".json")  # what the names of `data` end with that hold V2 requests
_TOKENS = 100  # random integers are below this


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as described by the metadata. `shape`: without the batch axis, -1 for a variable axis."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    batched: bool

    @classmethod
    def parse(cls, text: Any) -> Tensor:
        """Raises ValueError if it is not valid V2 metadata."""
        try:
            name, datatype, shape = text["name"], text["datatype"], [int(length) for length in text["shape"]]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"model: expected name, datatype and shape in its metadata, got {text!r}") from None
        if datatype not in DTYPES:
            raise ValueError(f"model: {name!r} has the datatype {datatype!r}, which is not known here")
        batched = shape[:1] == [-1]
        return cls(str(name), datatype, tuple(shape[1:] if batched else shape), batched)


@dataclass(frozen=True, slots=True)
class Body:
    """One request: the bytes to send, its rows, and the outputs that its answer must have.

    `outputs` is None for the friendly route, whose answers are JSON of any kind.
    """

    request: bytes
    rows: int
    outputs: tuple[Tensor, ...] | None


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The inputs and outputs in a model's metadata."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def parse(cls, text: bytes) -> ModelMetadata:
        try:
            found = orjson.loads(text)
            inputs, outputs = found["inputs"], found["outputs"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"model: expected V2 metadata, got {text[:80]!r}") from None
        return cls(tuple(map(Tensor.parse, inputs)), tuple(map(Tensor.parse, outputs)))


def prepare(model: ModelMetadata, plan: BenchPlan) -> list[Body]:
    """The requests of a measurement, the longest first. Raises ValueError for options that do not fit the model."""
    if plan.data is not None:
        return _given(model, plan, plan.data) if holds_v2(plan.data) else [_file(plan, plan.data)]
    shapes = _shapes(model, plan)
    random = np.random.default_rng([plan.seed, 2])
    lengths = sorted(Lengths(plan.lengths, [plan.seed, 4]).draw(BODIES).tolist(), reverse=True)
    made = (made_inputs(model, shapes, plan.rows, length, random) for length in lengths)
    return [Body(_encode(tensors, {}, plan), plan.rows, model.outputs) for tensors in made]


def made_inputs(
    model: ModelMetadata, shapes: Mapping[str, Sequence[int]], rows: int, length: int, random: np.random.Generator
) -> list[Given]:
    """The inputs of a request. `shapes`: by name, those of one row; axes of -1 are `length` long."""
    tensors: list[Given] = []
    for tensor in model.inputs:
        row = [length if axis == -1 else axis for axis in shapes[tensor.name]]
        shape = [rows, *row] if tensor.batched else row
        tensors.append((tensor.name, tensor.datatype, shape, made_values(tensor, shape, random)))
    return tensors


def _shapes(model: ModelMetadata, plan: BenchPlan) -> dict[str, tuple[int, ...]]:
    shapes = {tensor.name: tensor.shape for tensor in model.inputs}
    if plan.rows > 1 and not all(tensor.batched for tensor in model.inputs):
        raise ValueError(f"rows: model {plan.model!r} takes no batch, got {plan.rows}")
    for text in plan.shapes:
        name, _, numbers = text.rpartition(":")
        if name not in shapes:
            raise ValueError(f"shape: expected NAME:d,d with one of {', '.join(shapes)}, got {text!r}")
        try:
            shapes[name] = tuple(int(number) for number in numbers.split(",") if number)
        except ValueError:
            raise ValueError(f"shape: expected NAME:d,d, got {text!r}") from None
        if any(length < -1 for length in shapes[name]):
            raise ValueError(f"shape: expected lengths of at least 0, or -1, got {text!r}")
    return shapes


def made_values(tensor: Tensor, shape: Sequence[int], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Values that suit models of any kind, see the module's text."""
    kind, name = tensor.datatype, tensor.name.lower()
    if kind == "BYTES":
        count = math.prod(shape)
        return np.array([f"word{n}".encode() for n in random.integers(0, _TOKENS, count)], object).reshape(shape)
    dtype = DTYPES[kind]
    if kind in ("FP16", "FP32", "FP64", "BF16"):
        return random.standard_normal(tuple(shape)).astype(dtype)
    if name.endswith("mask"):
        return np.ones(shape, dtype)
    if "type" in name:
        return np.zeros(shape, dtype)
    return random.integers(0, 2 if kind == "BOOL" else _TOKENS, tuple(shape)).astype(dtype)


def holds_v2(path: Path) -> bool:
    """Whether a file holds V2 requests; else it is sent unchanged."""
    return path.suffix.lower() in _V2_FILES


def _file(plan: BenchPlan, path: Path) -> Body:
    """A file of another type than JSON, as one row of the friendly route."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise ValueError(f"data: {exc}") from None
    if plan.rows != 1:
        raise ValueError(f"rows: a file that is sent as it is makes one row, got {plan.rows}")
    asked = {"timeout_ms": plan.deadline_ms, "priority": plan.priority}
    query = urlencode({name: f"{value:g}" for name, value in asked.items() if value is not None})
    target = f"{plan.target.prefix}/predict/{quote(plan.model, safe='')}{'?' * bool(query)}{query}"
    lines = [f"POST {target} HTTP/1.1", *header_lines(plan)]
    media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"  # of .npy; its bytes tell the server
    lines += [f"Content-Type: {media}", f"Content-Length: {len(content)}", "", ""]
    return Body("\r\n".join(lines).encode("ascii") + content, 1, None)


def _given(model: ModelMetadata, plan: BenchPlan, path: Path) -> list[Body]:
    """The requests in the file, decoded, so that they can be sent with either payload."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, OSError) as exc:
        raise ValueError(f"data: expected a file of JSON, got {exc}") from None
    bodies = []
    for body in found if isinstance(found, list) else [found]:
        tensors = []
        try:
            for given in body["inputs"]:
                shape = [int(length) for length in given["shape"]]
                tensors.append((given["name"], given["datatype"], shape, _array(given, shape)))
            rest = {name: value for name, value in body.items() if name not in ("inputs", "id")}
            rows = tensors[0][2][0] if tensors[0][2] else 1
            names = {output["name"] for output in rest.get("outputs", ())}
            outputs = tuple(tensor for tensor in model.outputs if not names or tensor.name in names)
            bodies.append(Body(_encode(tensors, rest, plan), rows, outputs))
        except (KeyError, TypeError, IndexError, ValueError) as exc:
            raise ValueError(f"data: {path}: expected a V2 inference request, {exc!r}") from None
    if not bodies:
        raise ValueError(f"data: {path}: expected at least one request, got none")
    return bodies


def _array(given: dict[str, Any], shape: list[int]) -> np.ndarray[Any, Any]:
    if given["datatype"] != "BYTES":
        return np.array(given["data"], DTYPES[given["datatype"]]).reshape(shape)
    flat = given["data"]
    while flat and isinstance(flat[0], list):
        flat = [item for part in flat for item in part]
    return np.array([str(item).encode() for item in flat], object).reshape(shape)


Given = tuple[str, str, Sequence[int], np.ndarray[Any, Any]]  # name, datatype, shape, values


def _encode(tensors: Sequence[Given], rest: dict[str, Any], plan: BenchPlan) -> bytes:
    """The bytes of a request. `rest`: its members besides the inputs."""
    parameters = dict(rest.get("parameters", {}))
    if plan.deadline_ms is not None:
        parameters["timeout"] = round(plan.deadline_ms * 1000)  # V2's, in microseconds
    if plan.priority is not None:
        parameters["priority"] = plan.priority
    headers, body = v2_body(tensors, {**rest, "parameters": parameters}, binary=plan.payload == "binary")
    lines = [
        f"POST {plan.path}/infer HTTP/1.1",
        *header_lines(plan),
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("ascii") + body


def v2_body(tensors: Sequence[Given], rest: dict[str, Any], *, binary: bool) -> tuple[dict[str, str], bytes]:
    """Headers and body of a V2 request for these inputs. `rest`: its members besides them.

    `binary`: all tensors are raw bytes behind a JSON head, also those of the answer.
    """
    inputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, datatype, shape, values in tensors:
        text: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
        if binary:
            parts.append(_raw(datatype, values))
            text["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            text["data"] = _listed(datatype, values)
        inputs.append(text)
    parameters = {**rest.get("parameters", {}), **({"binary_data_output": True} if binary else {})}
    others = {name: value for name, value in rest.items() if name != "parameters"}
    request = {**others, "inputs": inputs, **({"parameters": parameters} if parameters else {})}
    head = orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY)
    if not binary:
        return {"Content-Type": "application/json"}, head
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return headers, b"".join([head, *parts])


def header_lines(plan: BenchPlan) -> list[str]:
    """Header lines that every request has."""
    return [f"Host: {plan.target.authority}", *(header.strip() for header in plan.headers)]


def _raw(datatype: str, values: np.ndarray[Any, Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(item)) + item for item in values.reshape(-1))
    if datatype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.tobytes()


def _listed(datatype: str, values: np.ndarray[Any, Any]) -> Any:
    if datatype == "BF16":
        raise ValueError("payload: BF16 is binary only, in V2; give --payload binary")
    if datatype == "BYTES":
        return [item.decode() for item in values.reshape(-1)]
    return (values.astype("<f4") if datatype == "FP16" else values).reshape(-1)
