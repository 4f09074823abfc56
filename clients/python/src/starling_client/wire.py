"""Requests and answers as bytes: V2 with binary tensors, or as JSON. No input or output happens here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starling_client.errors import BadAnswer, Interrupted, ServerError, server_error
from starling_client.tensors import from_bytes, from_json, to_bytes, to_json
from starling_client.types import Array, Call, Metadata, Tensor

_LENGTH = "inference-header-content-length"
_QUOTED = 300  # characters of an answer that is not ours, as a message quotes it
#: What looking into JSON of another form raises.
_NOT_V2 = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_TIMING = re.compile(r"(queue|compute|total);dur=(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Request:
    """`path` stands behind the server's address and is quoted; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names are in lower case; the body is whole and not compressed.

    `response`: httpx's, of a stream that has begun. Its body is still to come, and whoever gets it closes it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    response: Any = None


@dataclass(slots=True)
class Part:
    """The answer to one request. `lengths`: of outputs whose rows end by themselves."""

    outputs: dict[str, Array]
    version: str
    rows: int
    lengths: dict[str, tuple[int, ...]]
    request_id: str
    times_ms: dict[str, float]
    batch_size: int
    tries: int = 1


def model_path(model: str, version: str | None, what: str = "") -> str:
    """The path of a model, or of one version of it. Raises ValueError for a name that no path can hold."""
    if model in ("", ".", ".."):
        raise ValueError(f"model: expected a name, got {model!r}")
    middle = "" if version is None else f"/versions/{quote(version, safe='')}"
    return f"/v2/models/{quote(model, safe='')}{middle}{what}"


def encode(call: Call, inputs: Sequence[Tensor], arrays: Sequence[Array], *, binary: bool, request_id: str) -> Request:
    """The request for an inference. `arrays`: [rows, ...] for each input, of its dtype.

    Raises ValueError for what JSON cannot hold. Equal calls of one shape have equal JSON, which the server remembers.
    """
    tails: list[bytes] = []
    tensors: list[dict[str, Any]] = []
    for spec, array in zip(inputs, arrays, strict=True):
        tensor: dict[str, Any] = {"name": spec.name, "shape": array.shape, "datatype": spec.datatype}
        if binary:
            tails.append(to_bytes(spec.datatype, array))
            tensor["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            tensor["data"] = to_json(spec.name, spec.datatype, array)
        tensors.append(tensor)
    document: dict[str, Any] = {"inputs": tensors}
    parameters = _parameters(call)
    if call.outputs is not None:
        wanted = {"parameters": {"binary_data": True}} if binary else {}
        document["outputs"] = [{"name": name, **wanted} for name in call.outputs]
    elif binary:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    head = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    headers = {"content-type": "application/octet-stream" if binary else "application/json"}
    if binary:
        headers[_LENGTH] = str(len(head))
    headers |= _headers(call, request_id)
    return Request("POST", model_path(*call.key, "/infer"), headers, b"".join([head, *tails]))


def encode_text(call: Call, text: str) -> Request:
    """The request for a text that is streamed. Raises ValueError for a call that names outputs."""
    if call.outputs is not None:
        raise ValueError("outputs: a text that is streamed has none")
    document: dict[str, Any] = {"text_input": text, "parameters": _parameters(call)}
    headers = {"content-type": "application/json", **_headers(call, call.request_id or "")}
    body = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return Request("POST", model_path(*call.key, "/generate_stream"), headers, body)


class Events:
    """The events of a text that is streamed, each a piece of it. `ended`: the last has come."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""

    def read(self, chunk: bytes) -> Iterator[str]:
        """The pieces that have come. Raises Interrupted or BadAnswer."""
        # Not `splitlines`: text may have separators of its own.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and (piece := self._read(line.removeprefix(b"data: "))):
                yield piece

    def _read(self, data: bytes) -> str:
        try:
            event = json.loads(data)
            if "error" in event:
                raise Interrupted(str(event["error"]))
            self.ended = "finish_reason" in event
            return str(event["text_output"])
        except _NOT_V2:
            raise BadAnswer(f"expected an event with text_output, got {data[:_QUOTED]!r}") from None


def _headers(call: Call, request_id: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    if call.service_class is not None:
        headers["x-class"] = call.service_class  # as a header it is known before the body has been read
    if request_id:
        headers["x-request-id"] = request_id
    return headers


def _parameters(call: Call) -> dict[str, Any]:
    parameters: dict[str, Any] = dict(call.parameters)
    for name, timeout_ms in (("timeout", call.timeout_ms), ("total_timeout", call.total_timeout_ms)):
        if timeout_ms is not None:
            parameters[name] = max(1, round(timeout_ms * 1000))
    if call.priority:
        parameters["priority"] = call.priority
    return parameters


def decode(answer: Answer, wanted: Sequence[str], rows: int | None) -> Part:
    """The outputs in an answer with status 200. Raises BadAnswer where it is not V2, or does not answer what was asked.

    `wanted`: names of the outputs asked for; `rows`: how many each must have, None where they have none.
    """
    try:
        head, tail = _taken_apart(answer)
        version = str(head.get("model_version", ""))
        outputs: dict[str, Array] = {}
        lengths: dict[str, tuple[int, ...]] = {}
        for tensor in head["outputs"]:
            name, parameters = str(tensor["name"]), tensor.get("parameters") or {}
            outputs[name], tail = _output(name, tensor, parameters, tail)
            if "lengths" in parameters:
                lengths[name] = tuple(int(length) for length in parameters["lengths"].split(","))
    except _NOT_V2 as exc:
        raise BadAnswer(f"the answer is not V2: {type(exc).__name__}: {exc}") from exc
    if tail:
        raise BadAnswer(f"{len(tail)} bytes are left over after the last output")
    missing = [name for name in wanted if name not in outputs]
    if missing:
        raise BadAnswer(f"outputs {', '.join(missing)} are missing in the answer")
    for name, array in outputs.items():
        if rows is not None and array.shape[:1] != (rows,):
            raise BadAnswer(f"output {name!r}: {rows} rows were sent, and shape {list(array.shape)} came back")
    times, batch_size = _measured(answer.headers)
    return Part(
        {name: outputs[name] for name in wanted}, version, rows or 1, lengths,
        answer.headers.get("x-request-id", ""), times, batch_size,
    )  # fmt: skip


def _taken_apart(answer: Answer) -> tuple[dict[str, Any], memoryview]:
    """The JSON of an answer, and the bytes behind it."""
    length = answer.headers.get(_LENGTH)
    size = len(answer.body) if length is None else int(length)
    if not 0 <= size <= len(answer.body):
        raise ValueError(f"{size} bytes of JSON in a body of {len(answer.body)}")
    head = json.loads(answer.body[:size])
    if not isinstance(head, dict):
        raise TypeError("expected a JSON object")
    return head, memoryview(answer.body)[size:]


def _output(
    name: str, tensor: Mapping[str, Any], parameters: Mapping[str, Any], tail: memoryview
) -> tuple[Array, memoryview]:
    """One output, and the bytes behind it."""
    datatype, shape = str(tensor["datatype"]), [int(length) for length in tensor["shape"]]
    if any(length < 0 for length in shape):
        raise ValueError(f"output {name!r}: shape {shape}")
    if "binary_data_size" not in parameters:
        return from_json(name, datatype, shape, tensor["data"]), tail
    size = int(parameters["binary_data_size"])
    if not 0 <= size <= len(tail):
        raise ValueError(f"output {name!r}: {size} bytes, but {len(tail)} are left")
    return from_bytes(name, datatype, shape, tail[:size]), tail[size:]


def _measured(headers: Mapping[str, str]) -> tuple[dict[str, float], int]:
    """The times and the batch size that the server tells, where it does."""
    times = {name: float(ms) for name, ms in _TIMING.findall(headers.get("server-timing", ""))}
    size = headers.get("x-batch-size", "")
    return times, int(size) if size.isdecimal() else 0


def decode_metadata(answer: Answer) -> Metadata:
    """A model's metadata. Raises BadAnswer."""
    found = decode_json(answer)
    try:
        return Metadata(
            str(found["name"]),
            tuple(str(version) for version in found.get("versions") or ()),
            str(found.get("platform", "")),
            tuple(_tensor(tensor) for tensor in found["inputs"]),
            tuple(_tensor(tensor) for tensor in found["outputs"]),
        )
    except _NOT_V2 as exc:
        raise BadAnswer(f"the metadata are not V2: {type(exc).__name__}: {exc}") from exc


def _tensor(found: Mapping[str, Any]) -> Tensor:
    return Tensor(str(found["name"]), str(found["datatype"]), tuple(int(length) for length in found["shape"]))


def decode_json(answer: Answer) -> Any:
    """The JSON of an answer. Raises BadAnswer."""
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as exc:
        raise BadAnswer(f"the answer is not JSON: {exc}") from None


def decode_error(answer: Answer) -> ServerError:
    """What an answer of another status than 200 means; of one that is not ours, the beginning is the message."""
    try:
        found = json.loads(answer.body)
        message = str(found["error"]) if isinstance(found, dict) and "error" in found else str(found)[:_QUOTED]
    except (ValueError, RecursionError):
        message = answer.body[:_QUOTED].decode("utf-8", "replace").strip()
    if "location" in answer.headers and 300 <= answer.status < 400:
        message = f"redirected to {answer.headers['location']}: give the client that address"
    error = server_error(answer.status, message or _phrase(answer.status), answer.headers.get("x-error-code"))
    error.request_id = answer.headers.get("x-request-id")
    error.retry_after_s = _retry_after(answer.headers.get("retry-after"))
    return error


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"


def _retry_after(text: str | None) -> float | None:
    """Seconds, from a number of them or a date; None for what is neither."""
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at - datetime.now(UTC)).total_seconds()) if at.tzinfo else None
