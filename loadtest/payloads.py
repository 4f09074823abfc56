"""Requests for any V2 model, made from its metadata, and what a right answer to each of them is.

Bodies are made before the load starts, because a client that makes them while it measures measures itself. Nothing
here imports Locust: its import patches the standard library, which tests cannot undo.
"""

from __future__ import annotations

import json
import math
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from app.bench.answers import decode
from app.bench.http import Response
from app.bench.payload import DTYPES, Model, Tensor

SAMPLES = Path(__file__).resolve().parents[1] / "app" / "models" / "demo" / "digits" / "samples"
IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
#: Different bodies for each kind of payload: enough to show a distribution, few enough to keep in memory.
POOL = 64
POOL_BYTES = 64 << 20
#: What reading an answer raises whose JSON is none, or has other types than it should.
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
_BIGGEST_INTEGER = 100  # integers are often indices into a vocabulary, and every vocabulary has that many entries
_HEADER = "Inference-Header-Content-Length"
_JSON = {"Content-Type": "application/json"}
#: What a server says when it is asked for more than it can do; a ramp is meant to see it. 0: no connection.
OVERLOADED = {0, 429, 503, 504}

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
    lognormal:MEAN:SD:MAX    this mean and standard deviation, rounded and cut to 1..MAX
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


def metadata_of(host: str | None, model: str, key: str) -> dict[str, Any]:
    """The V2 metadata of a server's model. Raises OSError where it cannot be had, ValueError if it is not a 200."""
    url = f"{(host or '').rstrip('/')}/v2/models/{model}"
    asked = urllib.request.Request(url, headers={"X-API-Key": key} if key else {})
    try:
        with urllib.request.urlopen(asked, timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        raise ValueError(refusal(error.code, error.read())) from None
    return answer


def refusal(status: int, body: bytes) -> str:
    """What a failure is called: errors are counted by it, so it must not differ from request to request."""
    if status in OVERLOADED or status >= 500:
        return f"status {status}"
    try:
        return f"status {status}: {json.loads(body)['error']}"
    except (ValueError, KeyError, TypeError):
        return f"status {status}"


def v2_json(metadata: Mapping[str, Any], mix: Mix) -> list[Request]:
    """Requests with all tensors as JSON, answered the same way."""
    return _requests(metadata, mix, binary=False)


def v2_binary(metadata: Mapping[str, Any], mix: Mix) -> list[Request]:
    """Requests with all tensors as raw bytes behind a JSON head, answered the same way."""
    return _requests(metadata, mix, binary=True)


def _requests(metadata: Mapping[str, Any], mix: Mix, *, binary: bool) -> list[Request]:
    """Up to POOL requests, fewer where they are big."""
    model, rng = Model.parse(orjson.dumps(metadata)), random.Random(mix.seed)
    requests: list[Request] = []
    while len(requests) < POOL and sum(len(request.body) for request in requests) < POOL_BYTES:
        rows, length = mix.rows.draw(rng), mix.lengths.draw(rng)
        values = made_values(model, rows, length, rng.getrandbits(64))
        requests.append(v2_request(metadata["name"], model, values, rows, binary=binary))
    return requests


def made_values(model: Model, rows: int, length: int, seed: int) -> list[Array]:
    """Values of each input, rows first where it has them; axes of variable length are `length` long."""
    numbers = np.random.default_rng(seed)
    return [
        _values(tensor, [rows] * tensor.batched + [length if axis < 0 else axis for axis in tensor.shape], numbers)
        for tensor in model.inputs
    ]


def v2_request(name: str, model: Model, given: Sequence[Array], rows: int, *, binary: bool) -> Request:
    """The request for these values of the inputs."""
    inputs, parts = [], []
    for tensor, values in zip(model.inputs, given, strict=True):
        described = {"name": tensor.name, "shape": values.shape, "datatype": tensor.datatype}
        if binary:
            parts.append(_raw(values))
            inputs.append({**described, "parameters": {"binary_data_size": len(parts[-1])}})
        else:
            inputs.append({**described, "data": _listed(values)})
    asked = {"parameters": {"binary_data_output": True}} if binary else {}
    head = json.dumps({"inputs": inputs, **asked}, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", _HEADER: str(len(head))} if binary else _JSON
    # What the demo model `echo` must send back; of other models only the form of the answer is known.
    check = V2Check(model, rows, given[0] if name == "echo" else None, binary=binary)
    return Request(f"/v2/models/{name}/infer", headers, b"".join([head, *parts]), rows, check)


def _values(tensor: Tensor, shape: list[int], numbers: np.random.Generator) -> Array:
    """Plausible values: a mask lets everything through, integers stay small, strings are words."""
    if tensor.datatype == "BYTES":
        words = [b"word %d" % n for n in numbers.integers(_BIGGEST_INTEGER, size=math.prod(shape))]
        return np.array(words).reshape(shape)
    if tensor.datatype == "BF16":
        raise ValueError(f"input {tensor.name!r}: values of BF16 are not made here")
    kind = np.dtype(DTYPES[tensor.datatype])
    if "mask" in tensor.name:
        return np.ones(shape, kind)
    if kind.kind == "f":
        return numbers.standard_normal(shape).astype(kind)
    return numbers.integers(2 if kind.kind == "b" else _BIGGEST_INTEGER, size=shape).astype(kind)


def _listed(values: Array) -> list[Any]:
    """Flat. Floats with the digits of a double: the longest that a client would send."""
    return [item.decode() if isinstance(item, bytes) else item for item in values.ravel().tolist()]


def _raw(values: Array) -> bytes:
    """As on the wire: each element of BYTES behind its length as a little-endian uint32."""
    if values.dtype.kind != "S":
        return values.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in values.ravel().tolist())


@dataclass(frozen=True, slots=True)
class V2Check:
    """Names, datatypes, shapes and number of values of a V2 answer; for `echo` the values themselves."""

    model: Model
    rows: int
    values: Array | None
    binary: bool

    def __call__(self, headers: Headers, body: bytes) -> None:
        length = headers.get(_HEADER, "")
        if bool(length) != self.binary:
            raise WrongAnswer(f"{_HEADER}: expected {'one' if self.binary else 'none'}, got {length or 'none'}")
        head = f"\r\n{_HEADER}: {length}\r\n".lower().encode() if length else b""
        try:
            outputs = decode(Response(200, head, body, keep=True))
        except MALFORMED as error:
            raise WrongAnswer(f"body: expected V2 JSON with outputs, got {type(error).__name__}: {error}") from None
        wanted = {tensor.name: tensor for tensor in self.model.outputs}
        if set(outputs) != set(wanted):
            raise WrongAnswer(f"outputs: expected {', '.join(wanted)}, got {', '.join(outputs) or 'none'}")
        for name, (datatype, values) in outputs.items():
            self._verify(wanted[name], datatype, values)

    def _verify(self, wanted: Tensor, datatype: str, values: Array) -> None:
        if datatype != wanted.datatype:
            raise WrongAnswer(f"output {wanted.name}: expected {wanted.datatype}, got {datatype}")
        shape = [self.rows] * wanted.batched + list(wanted.shape)
        if len(values.shape) != len(shape) or any(
            axis not in (-1, got) for axis, got in zip(shape, values.shape, strict=True)
        ):
            raise WrongAnswer(f"output {wanted.name}: expected shape {shape}, got {list(values.shape)}")
        # Equal once rounded to the tensor's type: a float32 may be written with its own digits or with a double's.
        if self.values is not None and not np.array_equal(values.astype(self.values.dtype), self.values):
            raise WrongAnswer(f"output {wanted.name}: expected the values that were sent")


def image_files(metadata: Mapping[str, Any], path: Path = SAMPLES) -> list[Request]:
    """One request for the friendly route for each PNG or JPEG in the folder, or for the one file.

    The digits that come with the demo are named by what they show, which the answer of `digits` must say, too.
    Raises ValueError where there is no image.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.suffix.lower() in IMAGE_TYPES and file.is_file()]
    if not files:
        raise ValueError(f"images: expected a PNG or JPEG file or a folder with some, got {path}")
    digits = metadata["name"] == "digits"
    return [
        Request(
            f"/predict/{metadata['name']}",
            {"Content-Type": IMAGE_TYPES[file.suffix.lower()]},
            file.read_bytes(),
            1,
            DigitsCheck(int(file.stem) if file.resolve().parent == SAMPLES else None) if digits else check_object,
        )
        for file in files
    ]


def check_object(headers: Headers, body: bytes) -> None:
    """An image's answer is one JSON object."""
    try:
        answer = orjson.loads(body)
    except ValueError as error:
        raise WrongAnswer(f"body: expected the JSON of one row, got {error}") from None
    if not isinstance(answer, dict) or not answer:
        raise WrongAnswer(f"body: expected an object, got {type(answer).__name__}")


@dataclass(frozen=True, slots=True)
class DigitsCheck:
    """Of `digits` it has a label, its probability and ten scores."""

    label: int | None

    def __call__(self, headers: Headers, body: bytes) -> None:
        check_object(headers, body)
        answer = orjson.loads(body)
        if set(answer) != {"label", "probability", "scores"}:
            raise WrongAnswer(f"body: expected label, probability, scores, got {', '.join(answer)}")
        scores = answer["scores"]
        if not isinstance(scores, dict) or len(scores) != 10:
            raise WrongAnswer(f"scores: expected an object of 10, got {type(scores).__name__}")
        if self.label is not None and answer["label"] != self.label:
            raise WrongAnswer(f"label: expected {self.label}, got {answer['label']}")
