"""The Open Inference Protocol (V2), JSON and binary: `v2_decode` takes a body apart, `v2_encode` writes the answer."""

from __future__ import annotations

from app.contract import Answer, Served
from app.errors import BadRequest
from app.http.body import Limits
from app.http.codecs.base import OFF_LOOP_BYTES, DecodedCall, RequestHeaders
from app.http.codecs.v2_decode import decode_v2
from app.http.codecs.v2_encode import encode_v2

_LENGTH = b"inference-header-content-length"
_OFF_LOOP_BINARY = 8 << 20  # bytes from which a binary body is decoded off the loop; tensors are viewed, not parsed


class V2:
    """Implements Codec."""

    names_class = True
    takes_query = False

    def may_name_class(self, body: bytes) -> bool:
        return b'"class"' in body or b"\\u" in body  # JSON may have escapes for any character

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return len(body) > OFF_LOOP_BYTES and (_LENGTH not in headers or len(body) > _OFF_LOOP_BINARY)

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        if _LENGTH not in headers:
            return decode_v2(body, None, served.info, limits.json)
        text = headers[_LENGTH]
        if not text.isdigit() or len(text) > 18:
            got = text[:40].decode("latin-1")
            raise BadRequest(f"Inference-Header-Content-Length: expected a number of bytes, got {got!r}")
        return decode_v2(body, int(text), served.info, limits.json)

    def slow_to_encode(self, served: Served, call: DecodedCall) -> bool:
        return False

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        return encode_v2(call, answer, served.info)
