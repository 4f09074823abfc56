"""Requests for any V2 model, made from its metadata, and what a right answer to each of them is.

Bodies are made before the load starts, because a client that makes them while it measures measures itself. Nothing
here imports Locust: its import patches the standard library, which tests cannot undo.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

SAMPLES = Path(__file__).resolve().parents[1] / "app" / "models" / "demo" / "digits" / "samples"
IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
#: Different bodies for each kind of payload: enough to show a distribution, few enough to keep in memory.
POOL = 64
POOL_BYTES = 64 << 20
#: What reading an answer raises whose JSON is none, or has other types than it should.
MALFORMED = (AttributeError, KeyError, TypeError, ValueError)
_BIGGEST_INTEGER = 100  # integers are often indices into a vocabulary, and every vocabulary has that many entries
_HEADER = "Inference-Header-Content-Length"
_NUMPY = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8,
    "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "FP16": np.float16, "FP32": np.float32,
    "FP64": np.float64,
}  # fmt: skip

Array = NDArray[Any]


class WrongAnswer(Exception):
    """A 200 that does not answer the request: the message names the field, what was expected and what came."""


class Headers(Protocol):
    """What an answer's headers must offer, whatever client received them. Names in any case."""

    def get(self, name: str, default: str, /) -> str: ...


#: Raises WrongAnswer unless these headers and this body answer the request.
Check = Callable[[Headers, bytes], None]


@dataclass(frozen=True, slots=True)
class Request:
    """One prepared POST: `rows` in it, and the check that its answer must pass."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    rows: int
    check: Check


@dataclass(frozen=True, slots=True)
class Sizes:
    """A distribution of whole numbers, at least 1.

    N                        always N
    uniform:LO:HI            each from LO to HI as often as the others
    choice:A,B,...           one of these; name one twice to have it twice as often
    lognormal:MEAN:SD:MAX    this mean and standard deviation, rounded, 1 to MAX; as `starling bench` has it
    """

    kind: str
    numbers: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Raises ValueError that says what was expected."""
        kind, colon, rest = text.partition(":")
        if not colon:
            kind, rest = "choice", text
        try:
            numbers = tuple(float(word) for word in rest.split("," if kind == "choice" else ":"))
        except ValueError:
            numbers = ()
        if not all(map(math.isfinite, numbers)):
            numbers = ()
        whole = all(number >= 1 and number == math.floor(number) for number in numbers)
        fits = {
            "choice": len(numbers) > 0 and whole,
            "uniform": len(numbers) == 2 and whole and numbers[0] <= numbers[1],
            "lognormal": len(numbers) == 3 and numbers[0] > 0 and numbers[1] >= 0 and numbers[2] >= 1,
        }
        if not fits.get(kind):
            raise ValueError(
                "expected N, uniform:LO:HI, choice:A,B,... in whole numbers from 1, or lognormal:MEAN:SD:MAX, "
                f"got {text!r}"
            )
        return cls(kind, numbers)

    def draw(self, rng: random.Random) -> int:
        if self.kind == "uniform":
            low, high = self.numbers
            return rng.randint(int(low), int(high))
        if self.kind == "choice":
            return int(rng.choice(self.numbers))
        mean, deviation, most = self.numbers
        variance = math.log1p((deviation / mean) ** 2)
        drawn = rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
        return int(min(most, max(1, round(drawn))))


@dataclass(frozen=True, slots=True)
class Mix:
    """What the requests of a run are drawn from. `lengths` are those of variable axes; a request's axes share one."""

    rows: Sizes
    lengths: Sizes
    seed: int = 0


def v2_json(metadata: Mapping[str, Any], mix: Mix) -> list[Request]:
    """Requests with all tensors as JSON, answered the same way."""
    return _filled(lambda rng: _json_request(metadata, *_draw(metadata, mix, rng)), mix.seed)


def v2_binary(metadata: Mapping[str, Any], mix: Mix) -> list[Request]:
    """Requests with all tensors as raw bytes behind a JSON head, answered the same way."""
    return _filled(lambda rng: _binary_request(metadata, *_draw(metadata, mix, rng)), mix.seed)


def image_files(metadata: Mapping[str, Any], path: Path = SAMPLES) -> list[Request]:
    """One request for the friendly route for each PNG or JPEG in the folder, or for the one file.

    The digits that come with the demo are named by what they show, which the answer of `digits` must say, too.
    Raises ValueError where there is no image.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.suffix.lower() in IMAGE_TYPES and file.is_file()]
    if not files:
        raise ValueError(f"images: expected a PNG or JPEG file or a folder with some, got {path}")
    requests = []
    for file in files:
        known = metadata["name"] == "digits" and file.resolve().parent == SAMPLES
        check = FriendlyCheck(metadata, int(file.stem) if known else None)
        headers = {"Content-Type": IMAGE_TYPES[file.suffix.lower()]}
        requests.append(Request(f"/predict/{metadata['name']}", headers, file.read_bytes(), 1, check))
    return requests


def _filled(make: Callable[[random.Random], Request], seed: int) -> list[Request]:
    """Up to POOL requests, fewer where they are big."""
    rng = random.Random(seed)
    requests: list[Request] = []
    while len(requests) < POOL and sum(len(request.body) for request in requests) < POOL_BYTES:
        requests.append(make(rng))
    return requests


def _draw(metadata: Mapping[str, Any], mix: Mix, rng: random.Random) -> tuple[dict[str, Array], int]:
    """The input tensors of one request, by name, and its rows."""
    rows, length = mix.rows.draw(rng), mix.lengths.draw(rng)
    numbers = np.random.default_rng(rng.getrandbits(64))
    arrays = {}
    for tensor in metadata["inputs"]:
        shape = [rows, *(length if axis < 0 else axis for axis in tensor["shape"][1:])]
        arrays[tensor["name"]] = _values(tensor, shape, numbers)
    return arrays, rows


def _values(tensor: Mapping[str, Any], shape: list[int], numbers: np.random.Generator) -> Array:
    """Plausible values: a mask lets everything through, integers stay small, strings are words."""
    datatype = tensor["datatype"]
    if datatype == "BYTES":
        return np.array([b"word %d" % n for n in numbers.integers(_BIGGEST_INTEGER, size=math.prod(shape))]).reshape(
            shape
        )
    if datatype not in _NUMPY:
        raise ValueError(f"input {tensor['name']!r}: expected one of {', '.join(_NUMPY)} or BYTES, got {datatype}")
    kind = np.dtype(_NUMPY[datatype])
    if "mask" in tensor["name"]:
        return np.ones(shape, kind)
    if kind.kind == "f":
        return numbers.standard_normal(shape).astype(kind)
    return numbers.integers(2 if kind.kind == "b" else _BIGGEST_INTEGER, size=shape).astype(kind)


def _json_request(metadata: Mapping[str, Any], arrays: Mapping[str, Array], rows: int) -> Request:
    inputs = [
        {**_described(tensor, arrays[tensor["name"]]), "data": _listed(arrays[tensor["name"]])}
        for tensor in metadata["inputs"]
    ]
    body = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json"}
    return Request(_path(metadata), headers, body, rows, V2Check(metadata, rows, _echoed(metadata, arrays)))


def _binary_request(metadata: Mapping[str, Any], arrays: Mapping[str, Array], rows: int) -> Request:
    inputs, parts = [], []
    for tensor in metadata["inputs"]:
        array = arrays[tensor["name"]]
        raw = b"".join(_sized(array)) if array.dtype.kind == "S" else array.tobytes()
        inputs.append({**_described(tensor, array), "parameters": {"binary_data_size": len(raw)}})
        parts.append(raw)
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", _HEADER: str(len(head))}
    check = V2Check(metadata, rows, _echoed(metadata, arrays), binary=True)
    return Request(_path(metadata), headers, b"".join([head, *parts]), rows, check)


def _path(metadata: Mapping[str, Any]) -> str:
    return f"/v2/models/{metadata['name']}/infer"


def _described(tensor: Mapping[str, Any], array: Array) -> dict[str, Any]:
    return {"name": tensor["name"], "shape": list(array.shape), "datatype": tensor["datatype"]}


def _listed(array: Array) -> list[Any]:
    """Flat. Floats with the digits of a double: the longest that a client would send."""
    return [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]


def _sized(array: Array) -> Iterator[bytes]:
    """BYTES on the wire: each element behind its length as a little-endian uint32."""
    for item in array.ravel().tolist():
        yield len(item).to_bytes(4, "little")
        yield item


def _echoed(metadata: Mapping[str, Any], arrays: Mapping[str, Array]) -> Array | None:
    """What the demo model `echo` must send back; of other models only the form of the answer is known."""
    return next(iter(arrays.values())) if metadata["name"] == "echo" else None


class V2Check:
    """Names, datatypes, shapes and number of values of a V2 answer; for `echo` the values themselves."""

    def __init__(self, metadata: Mapping[str, Any], rows: int, values: Array | None, *, binary: bool = False) -> None:
        self.outputs = {tensor["name"]: (tensor["datatype"], tensor["shape"][1:]) for tensor in metadata["outputs"]}
        self.rows = rows
        self.values = values
        self.binary = binary

    def __call__(self, headers: Headers, body: bytes) -> None:
        try:
            self._verify(headers, body)
        except MALFORMED as error:
            raise WrongAnswer(f"body: expected V2 JSON with outputs, got {type(error).__name__}") from None

    def _verify(self, headers: Headers, body: bytes) -> None:
        head, raw = self._split(headers, body)
        outputs = {output["name"]: output for output in orjson.loads(head)["outputs"]}
        if set(outputs) != set(self.outputs):
            raise WrongAnswer(f"outputs: expected {', '.join(self.outputs)}, got {', '.join(outputs) or 'none'}")
        at = 0
        for name, output in outputs.items():
            size = output.get("parameters", {}).get("binary_data_size") if self.binary else None
            self._check(name, output, size)
            if size is not None:
                self._compare(name, raw[at : at + size])
                at += size
        if at != len(raw):
            raise WrongAnswer(f"body: expected {at} bytes of tensors, got {len(raw)}")

    def _split(self, headers: Headers, body: bytes) -> tuple[bytes, bytes]:
        """JSON and raw bytes. An answer must be of the kind that was asked for."""
        length = headers.get(_HEADER, "")
        if bool(length) != self.binary:
            raise WrongAnswer(f"{_HEADER}: expected {'one' if self.binary else 'none'}, got {length or 'none'}")
        if not length:
            return body, b""
        return body[: int(length)], body[int(length) :]

    def _check(self, name: str, output: Mapping[str, Any], size: int | None) -> None:
        datatype, row = self.outputs[name]
        if output.get("datatype") != datatype:
            raise WrongAnswer(f"output {name}: expected {datatype}, got {output.get('datatype')}")
        shape = output.get("shape", [])
        even = len(shape) == 1 + len(row) and all(
            wanted in (-1, got) for wanted, got in zip([self.rows, *row], shape, strict=True)
        )
        if not even:
            raise WrongAnswer(f"output {name}: expected shape {[self.rows, *row]}, got {shape}")
        count = math.prod(shape)
        if not self.binary:
            data = output.get("data", [])
            if _leaves(data) != count:
                raise WrongAnswer(f"output {name}: expected {count} values, got {_leaves(data)}")
            if self.values is not None and not _equal(self.values, data):
                raise WrongAnswer(f"output {name}: expected the values that were sent")
        elif size is None or (datatype in _NUMPY and size != count * np.dtype(_NUMPY[datatype]).itemsize):
            raise WrongAnswer(f"output {name}: expected the bytes of {count} values, got {size}")

    def _compare(self, name: str, raw: bytes) -> None:
        if self.values is not None and raw != self.values.tobytes():
            raise WrongAnswer(f"output {name}: expected the values that were sent")


def _leaves(data: Any) -> int:
    """Values in a list, nested or flat."""
    if not isinstance(data, list):
        return 1
    return sum(_leaves(item) for item in data) if data and isinstance(data[0], list) else len(data)


def _equal(sent: Array, data: list[Any]) -> bool:
    """Equal once rounded to the tensor's type: a float32 may be written with its own digits or with a double's."""
    return np.array_equal(np.asarray(data, sent.dtype).ravel(), sent.ravel())


class FriendlyCheck:
    """An image's answer: one JSON object, of `digits` with a label, its probability and ten scores."""

    def __init__(self, metadata: Mapping[str, Any], label: int | None) -> None:
        self.scores = metadata["outputs"][1]["shape"][1] if metadata["name"] == "digits" else None
        self.label = label

    def __call__(self, headers: Headers, body: bytes) -> None:
        try:
            self._verify(orjson.loads(body))
        except MALFORMED as error:
            raise WrongAnswer(f"body: expected the JSON of one row, got {type(error).__name__}") from None

    def _verify(self, answer: Any) -> None:
        if not isinstance(answer, dict) or not answer:
            raise WrongAnswer(f"body: expected an object, got {type(answer).__name__}")
        if self.scores is None:
            return
        if set(answer) != {"label", "probability", "scores"}:
            raise WrongAnswer(f"body: expected label, probability, scores, got {', '.join(answer)}")
        if len(answer["scores"]) != self.scores:
            raise WrongAnswer(f"scores: expected {self.scores}, got {len(answer['scores'])}")
        if self.label is not None and answer["label"] != self.label:
            raise WrongAnswer(f"label: expected {self.label}, got {answer['label']}")
