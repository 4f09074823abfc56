"""Requests for any V2 model, made from its metadata, and what a right answer to each of them is.

Bodies are made before the load starts, because a client that makes them while it measures measures itself. Nothing
here imports Locust: its import patches the standard library, which tests cannot undo.
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from loadtest.generator.payload import ModelMetadata, made_inputs, v2_body
from loadtest.generator.seen_answers import MALFORMED, decode, misfit
from planner.drawn_lengths import Lengths

SAMPLES = Path(__file__).resolve().parents[1] / "app" / "models" / "demo" / "digits" / "samples"
IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
#: Different bodies for each kind of payload: enough to show a distribution, few enough to keep in memory.
POOL = 64
POOL_BYTES = 64 << 20
_HEADER = "Inference-Header-Content-Length"
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
class Mix:
    """What the requests of a run are drawn from, as `Lengths` has it. `lengths`: of variable axes, which share one."""

    rows: str
    lengths: str
    seed: int = 0


def metadata_of(host: str | None, model: str, key: str) -> dict[str, Any]:
    """The V2 metadata of a server's model, asked for as Locust's users ask: not by a proxy of the environment, and
    whatever the certificate. Raises OSError where they cannot be had, ValueError if it is not a 200.
    """
    url = f"{(host or '').rstrip('/')}/v2/models/{model}"
    asked = urllib.request.Request(url, headers={"X-API-Key": key} if key else {})
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
    try:
        with urllib.request.build_opener(*handlers).open(asked, timeout=10) as response:
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


def is_overload(failure: str) -> bool:
    """Whether a failure, as Locust names it, is what a server may say that is asked for too much."""
    status = re.search(r"\bstatus (\d{3})\b", failure)
    return int(status[1]) in OVERLOADED if status else "wrong answer: " not in failure


def v2_json(metadata: Mapping[str, Any], mix: Mix) -> list[Request]:
    """Requests with all tensors as JSON, answered the same way."""
    return _requests(metadata, mix, binary=False)


def v2_binary(metadata: Mapping[str, Any], mix: Mix) -> list[Request]:
    """Requests with all tensors as raw bytes behind a JSON head, answered the same way."""
    return _requests(metadata, mix, binary=True)


def _requests(metadata: Mapping[str, Any], mix: Mix, *, binary: bool) -> list[Request]:
    """Up to POOL requests, fewer where they are big."""
    model = ModelMetadata.parse(orjson.dumps(metadata))
    random = np.random.default_rng([mix.seed, 2])
    rows, lengths = (
        Lengths(spec, [mix.seed, stream]).draw(POOL).tolist() for spec, stream in ((mix.rows, 3), (mix.lengths, 4))
    )
    shapes = {tensor.name: tensor.shape for tensor in model.inputs}
    name = metadata["name"]
    requests: list[Request] = []
    for count, length in zip(rows, lengths, strict=True):
        tensors = made_inputs(model, shapes, count, length, random)
        headers, body = v2_body(tensors, {}, binary=binary)
        # What the demo model `echo` must send back; of other models only the form of the answer is known.
        check = V2Check(model, count, tensors[0][3] if name == "echo" else None, binary=binary)
        requests.append(Request(f"/v2/models/{name}/infer", headers, body, count, check))
        if sum(len(request.body) for request in requests) >= POOL_BYTES:
            break
    return requests


@dataclass(frozen=True, slots=True)
class V2Check:
    """Names, datatypes, shapes and number of values of a V2 answer; for `echo` the values themselves."""

    model: ModelMetadata
    rows: int
    values: Array | None
    binary: bool

    def __call__(self, headers: Headers, body: bytes) -> None:
        length = headers.get(_HEADER, "")
        if bool(length) != self.binary:
            raise WrongAnswer(f"{_HEADER}: expected {'one' if self.binary else 'none'}, got {length or 'none'}")
        try:
            outputs = decode(body, length)
        except MALFORMED as error:
            raise WrongAnswer(f"body: expected V2 JSON with outputs, got {type(error).__name__}: {error}") from None
        if fault := misfit(outputs, self.model.outputs, self.rows):
            raise WrongAnswer(fault)
        for name, (_, values) in outputs.items():
            if self.values is not None and not np.array_equal(values, self.values):
                raise WrongAnswer(f"output {name}: expected the values that were sent")


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
