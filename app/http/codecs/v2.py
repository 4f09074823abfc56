"""The Open Inference Protocol (V2), JSON and binary, with shortcuts for the most common requests.

The shortcuts: a request with one JSON input of fixed size and no options; an answer with one output; and a JSON header
before binary tensors that has been decoded before. `v2_decode` decodes all other requests.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from app.contract import QUICK_VALUES, Answer, Array, ModelInfo, Served
from app.errors import BadRequest
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import OFF_LOOP_BYTES, Codec, DecodedCall
from app.http.codecs.v2_binary import decode_raw, join_bytes
from app.http.codecs.v2_decode import Spans, decode_request, read_again, too_much_json
from app.values.tensors import IN_FALSE, IN_TRUE, check_finite, has_bools, packer, shown, to_json, written

_LENGTH = b"inference-header-content-length"
_OFF_LOOP_BINARY = 8 << 20  # larger binary bodies are decoded off the event loop; their tensors are viewed, not parsed
_NO_TAIL = memoryview(b"")
_MOST_HEADERS, _LONGEST_HEADER = 256, 1024  # JSON headers cached per model, and bytes of each
_LARGE = 64 << 10  # bytes of a tensor from which a copy counts
_SMALL_ROW = 256  # values of a row up to which a whole batch is encoded at once: with more, that saves nothing
_IN_NULL = b"u"  # no number has this letter: searching one byte is 100 times as fast as a word
_ONE_BINARY = [(0, True)]  # `DecodedCall.outputs` of a request for the only output as binary


class V2(Codec):
    """Decodes and encodes named tensors."""

    names_class = True

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return len(body) > OFF_LOOP_BYTES and (_LENGTH not in headers or len(body) > _OFF_LOOP_BINARY)

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        """The body is JSON, unless a header gives the length of the JSON that precedes binary tensors."""
        info, text, tail, length = served.info, body, _NO_TAIL, None
        if _LENGTH in headers:
            length = _header_length(headers[_LENGTH], body)
            if length == 0:
                return decode_raw(body, info)
            text, tail = body[:length], memoryview(body)[length:]
            same = _decoded_before(info, text, tail)
            if same is not None:
                return same
        if len(text) > limits.json:
            raise too_much_json("body", limits.json, len(text), info)
        try:
            request = orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            request = read_again(text, exc)
        bools = (IN_TRUE in text or IN_FALSE in text) and has_bools(text)
        if not bools and length is None:
            plain = _decode_plain(request, info)
            if plain is not None:
                return plain
        if type(request) is not dict:
            raise BadRequest("body: expected a JSON object")
        call, spans = decode_request(request, tail, info)
        if length is not None and spans is not None:
            _remember(info, text, tail, call, spans)
        return call

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        """Raises OutputNotJson if an output asked for as JSON holds NaN or infinity."""
        info = served.info
        if call.id is None and info.plain_output:
            if call.outputs is None:
                return _encode_plain(answer, info), None
            if call.outputs == _ONE_BINARY:
                return _encode_binary(answer, info)
        return _encode_any(call, answer, info)


def _header_length(text: bytes, body: bytes) -> int:
    if not text.isdigit() or len(text) > 18 or int(text) > len(body):
        most, got = len(body), shown(text.decode("latin-1"))
        raise BadRequest(f"Inference-Header-Content-Length: expected a number of at most the body's {most}, got {got}")
    return int(text)


def _decode_plain(request: Any, info: ModelInfo) -> DecodedCall | None:
    """Decode the most common request: one tensor of fixed size, flat numbers, and no options.

    Takes a third of the time of `decode_request`. Returns None for any other request and for wrong ones;
    `decode_request` then says what is wrong.
    """
    spec = info.plain_input
    try:
        (tensor,) = request["inputs"]
        shape = tensor["shape"]
        data = tensor["data"]
        rows = shape[0]
        if (
            spec is None or len(request) != 1 or len(tensor) != 4 or tensor["name"] != spec.name
            or tensor["datatype"] != spec.datatype or rows < 1 or tuple(shape[1:]) != spec.shape
            or type(data) is not list or len(data) != rows * spec.count
        ):  # fmt: skip
            return None
        for length in shape:
            if type(length) is not int:  # 4.0 equals 4
                return None
        packed = packer(spec.datatype, len(data))(*data)
    except (TypeError, KeyError, ValueError, IndexError, OverflowError, struct.error):
        return None
    return DecodedCall(rows, [memoryview(packed)], {})


def _decoded_before(info: ModelInfo, text: bytes, tail: memoryview) -> DecodedCall | None:
    """The call of a request whose JSON header is cached, with as many bytes after it. None: it is not cached.

    Clients that send binary tensors send the same JSON header each time: it has everything but the values.
    """
    known: tuple[DecodedCall, Spans] | None = info.memo.get((text, len(tail)))
    if known is None:
        return None
    call, spans = known
    arrays: list[Array | memoryview] = [tail[start:end] for start, end in spans]
    return DecodedCall(
        call.rows, arrays, call.lengths, call.priority, call.timeout_us, call.total_timeout_us, call.klass,
        outputs=call.outputs,
    )  # fmt: skip


def _remember(info: ModelInfo, text: bytes, tail: memoryview, call: DecodedCall, spans: Spans) -> None:
    """Cache a decoded header, if decoding needs nothing but the header: BOOL and BYTES values must be checked."""
    if (
        len(text) > _LONGEST_HEADER or call.id is not None or call.parameters is not None
        or any(spec.datatype in ("BOOL", "BYTES") for spec in info.client_inputs)
    ):  # fmt: skip
        return
    if len(info.memo) >= _MOST_HEADERS:
        info.memo.clear()
    info.memo[text, len(tail)] = replace(call, arrays=[]), spans  # the call itself gets a class and priority


def _encode_any(call: DecodedCall, answer: Answer, info: ModelInfo) -> tuple[bytes, int | None]:
    """Encode any answer. Raises OutputNotJson as `V2.encode` does."""
    tensors: list[dict[str, Any]] = []
    chunks: list[bytes | memoryview] = []
    asked = call.outputs or [(index, spec.datatype == "BF16") for index, spec in enumerate(info.outputs)]
    for index, binary in asked:
        spec = info.outputs[index]
        values = answer.outputs[index]
        tensor: dict[str, Any] = {"name": spec.name, "shape": values.shape, "datatype": spec.datatype}
        own: dict[str, Any] = {}
        if answer.lengths is not None and len(answer.lengths) > 1 and info.has_own_length(spec):
            # a string, because V2's parameters are strings, numbers and booleans
            own["lengths"] = ",".join(map(str, answer.lengths))
        if binary:
            chunk = join_bytes(values) if spec.datatype == "BYTES" else _raw(values)
            own["binary_data_size"] = len(chunk)
            chunks.append(chunk)
        if own:
            tensor["parameters"] = own
        if not binary:
            flat = values.ravel()
            tensor["data"] = to_json(flat, spec.name) if flat.dtype == object else orjson.Fragment(written(flat))
        tensors.append(tensor)
    head: dict[str, Any] = {"model_name": info.name, "model_version": info.version, "outputs": tensors}
    if call.id is not None:
        head["id"] = call.id
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:  # orjson writes NaN as null; searching the text is faster than checking all values
        for index, binary in asked:
            if not binary:
                check_finite(answer.outputs[index], info.outputs[index].name)
    if chunks:
        return b"".join([text, *chunks]), len(text)
    return text, None


def _encode_plain(answer: Answer, info: ModelInfo) -> bytes:
    """The answer with one output as JSON and no options. Its constant parts are cached per model and shape."""
    spec = info.outputs[0]
    batch = answer.finished
    alone = batch is not None and len(batch.arrays[0]) == 1
    if batch is not None and not alone and spec.bounded and spec.count <= _SMALL_ROW:
        texts = batch.texts
        if texts is None:
            texts = batch.texts = _encode_rows(batch.arrays[0], info)
        if texts:
            return texts[answer.row]
    values = batch.arrays[0] if batch is not None and alone else answer.outputs[0]
    flat = values.ravel()
    # a small one without a call
    data = written(flat) if flat.size > QUICK_VALUES else orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if _IN_NULL in data and b"null" in data:  # see `_encode_any`
        check_finite(values, spec.name)
    return b"%s%s}]}" % (_head(info.name, info.version, spec.name, spec.datatype, values.shape), data[1:])


def _encode_rows(values: Array, info: ModelInfo) -> list[bytes]:
    """The answer of each row alone, of a batch whose answers are all encoded now: one at a time takes thrice as long.

    Empty if a value is NaN or infinite.
    """
    text = orjson.dumps(values.reshape(len(values), -1), option=orjson.OPT_SERIALIZE_NUMPY)
    if _IN_NULL in text and b"null" in text:
        return []
    spec = info.outputs[0]
    head = _head(info.name, info.version, spec.name, spec.datatype, (1, *values.shape[1:]))
    return [b"%s%s]}]}" % (head, row) for row in text[2:-2].split(b"],[")]


def _encode_binary(answer: Answer, info: ModelInfo) -> tuple[bytes, int]:
    """The answer with one output as bytes and no other options."""
    spec = info.outputs[0]
    values = answer.outputs[0]
    head = _head(info.name, info.version, spec.name, spec.datatype, values.shape, values.nbytes)
    return head + _raw(values), len(head)


def _raw(values: Array) -> bytes | memoryview:
    """The bytes of a tensor, if they are many without a copy: the answer is one."""
    if values.nbytes < _LARGE:
        return values.tobytes()
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


@lru_cache(maxsize=2048)
def _head(
    model: str, version: str, output: str, datatype: str, shape: tuple[int, ...], size: int | None = None
) -> bytes:
    """The JSON of an answer with one output, whose `size` bytes follow it. None: its text up to its first number."""
    tensor: dict[str, Any] = {"name": output, "shape": shape, "datatype": datatype}
    if size is not None:
        tensor["parameters"] = {"binary_data_size": size}
    text = orjson.dumps({"model_name": model, "model_version": version, "outputs": [tensor]})
    return text if size is not None else text.removesuffix(b"}]}") + b',"data":['
