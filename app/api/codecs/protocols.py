"""The three protocols of the inference path, each as the same three verbs: is it slow, decode, encode."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from app.api.codecs.friendly import FriendlyCall, decode_friendly, present_friendly
from app.api.codecs.v1 import decode_v1, encode_v1
from app.api.codecs.v2 import InferCall, decode, encode, load_json
from app.api.http import Limits
from app.contract import Answer, Served
from app.errors import BadRequest, TooLarge

Call = InferCall | FriendlyCall
RequestHeaders = dict[bytes, bytes]

_OFF_LOOP = 128 << 10  # JSON bytes from which decoding leaves the loop: about a millisecond
_OFF_LOOP_ROWS = 16  # rows of model code (`present`) from which encoding does


class Codec(Protocol):
    """One protocol. `slow` says that decode takes longer than the event loop should stand still."""

    def slow(self, served: Served, headers: RequestHeaders, body: bytes) -> bool: ...

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> Call:
        """The call that a body means. Raises a leaf of StarlingError."""
        ...

    def encode(self, served: Served, call: Any, answer: Answer) -> tuple[bytes, int | None]:
        """The answer's body, and the length of its JSON part where binary tensors follow it."""
        ...

    def slow_answer(self, served: Served, call: Call) -> bool: ...


class V2:
    """The Open Inference Protocol, JSON and binary."""

    def slow(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return len(body) > _OFF_LOOP and (b"inference-header-content-length" not in headers or len(body) > 1 << 23)

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> InferCall:
        if b"inference-header-content-length" not in headers:
            return decode(body, None, served.info, limits.json)
        text = headers[b"inference-header-content-length"]
        if not text.isdigit() or len(text) > 18:
            got = text[:40].decode("latin-1")
            raise BadRequest(f"Inference-Header-Content-Length: expected a number of bytes, got {got!r}")
        return decode(body, int(text), served.info, limits.json)

    def encode(self, served: Served, call: InferCall, answer: Answer) -> tuple[bytes, int | None]:
        return encode(call, answer, served.info)

    def slow_answer(self, served: Served, call: Call) -> bool:
        return False


class V1:
    """TensorFlow Serving's and KServe's predict."""

    def slow(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return len(body) > _OFF_LOOP

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> FriendlyCall:
        if len(body) > limits.json:
            raise TooLarge(f"body: expected at most {limits.json} bytes of JSON, got {len(body)}")
        return decode_v1(served, load_json(body))

    def encode(self, served: Served, call: FriendlyCall, answer: Answer) -> tuple[bytes, int | None]:
        return _dumps(encode_v1(served, answer.outputs)), None

    def slow_answer(self, served: Served, call: Call) -> bool:
        return False


class Friendly:
    """A value, a file or text in; JSON out. Images and `present` are model code and of any length."""

    def slow(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return served.model.decode is not None or len(body) > _OFF_LOOP

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> FriendlyCall:
        content_type = headers.get(b"content-type", b"").decode("latin-1") or None
        return decode_friendly(served, content_type, body, max_pixels=limits.pixels, max_json=limits.json)

    def encode(self, served: Served, call: FriendlyCall, answer: Answer) -> tuple[bytes, int | None]:
        return _dumps(present_friendly(served, answer.outputs, call)), None

    def slow_answer(self, served: Served, call: Call) -> bool:
        return served.model.present is not None and call.rows > _OFF_LOOP_ROWS


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
