"""One inference of `echo` in every protocol: the request for a number, and the very bytes that answer it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from .server import Reply
from .wire import post

V2 = "/v2/models/echo/infer"


@dataclass(frozen=True, slots=True)
class Example:
    """A request, and the body that must answer it."""

    path: str
    body: bytes
    answer: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def wire(self) -> bytes:
        """The request as bytes to send."""
        return post(self.path, self.body, self.headers)

    def packed(self) -> bytes:
        """The request with a compressed body."""
        return post(self.path, gzip.compress(self.body), {**self.headers, "Content-Encoding": "gzip"})

    def chunked(self, size: int = 10) -> bytes:
        """The request with a body in chunks of `size` bytes."""
        head, _, _ = self.wire().partition(b"\r\nContent-Length: ")
        parts = [self.body[at : at + size] for at in range(0, len(self.body), size)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])
        return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks

    def answered(self, answer: Reply) -> bool:
        return (answer.status, answer.body) == (200, self.answer)


def rows_of(number: int) -> list[list[int]]:
    """One to three rows that no other number below a million has, exact in float32."""
    return [[number + 1_000_000 * (4 * row + column) for column in range(4)] for row in range(1 + number % 3)]


def _texts(number: int) -> list[bytes]:
    """Each row as JSON, without brackets."""
    return [",".join(f"{value}.0" for value in row).encode() for row in rows_of(number)]


def _tensor(name: bytes, number: int, *, binary: bool) -> tuple[bytes, bytes]:
    """A V2 tensor: its JSON, and the bytes that follow if it is binary."""
    texts = _texts(number)
    raw = b"".join(struct.pack("<4f", *row) for row in rows_of(number)) if binary else b""
    data = b'"parameters":{"binary_data_size":%d}' % len(raw) if binary else b'"data":[%s]' % b",".join(texts)
    return b'{"name":"%s","shape":[%d,4],"datatype":"FP32",%s}' % (name, len(texts), data), raw


def _v2(number: int, *, binary_in: bool, binary_out: bool) -> Example:
    tensor, raw = _tensor(b"x", number, binary=binary_in)
    wanted = b'"parameters":{"binary_data_output":true},' if binary_out else b""
    head = b'{"id":"%d",%s"inputs":[%s]}' % (number, wanted, tensor)
    sent = {"Inference-Header-Content-Length": str(len(head))} if binary_in else {}
    return Example(V2, head + raw, _v2_answer(number, b',"id":"%d"' % number, binary=binary_out), sent)


def _v2_raw(number: int) -> Example:
    _, raw = _tensor(b"x", number, binary=True)
    return Example(V2, raw, _v2_answer(number, b"", binary=True), {"Inference-Header-Content-Length": "0"})


def _v2_answer(number: int, id: bytes, *, binary: bool) -> bytes:
    tensor, raw = _tensor(b"y", number, binary=binary)
    return b'{"model_name":"echo","model_version":"1","outputs":[%s]%s}%s' % (tensor, id, raw)


def _v1(number: int) -> Example:
    rows = b",".join(b"[%s]" % text for text in _texts(number))
    return Example("/v1/models/echo:predict", b'{"instances":[%s]}' % rows, b'{"predictions":[%s]}' % rows)


def _friendly(number: int) -> Example:
    texts = _texts(number)
    body = b"[%s]" % b",".join(b"[%s]" % text for text in texts)
    answer = b"[%s]" % b",".join(b'{"y":[%s]}' % text for text in texts)
    return Example("/predict/echo", body, answer, {"Content-Type": "application/json"})


#: What makes the example of a number, in each protocol.
PROTOCOLS: tuple[Callable[[int], Example], ...] = (
    partial(_v2, binary_in=False, binary_out=False),
    partial(_v2, binary_in=True, binary_out=True),
    partial(_v2, binary_in=False, binary_out=True),
    partial(_v2, binary_in=True, binary_out=False),
    _v2_raw,
    _v1,
    _friendly,
)


def example(number: int) -> Example:
    """Of one protocol after the other."""
    return PROTOCOLS[number % len(PROTOCOLS)](number)


def large(number: int) -> Example:
    """A small request to the model `wide`, and its answer of more than 100 KB."""
    body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[%d]}]}' % number
    y = b'{"name":"y","shape":[1,20000],"datatype":"FP32","data":[%s]}' % b",".join([b"%d.0" % number] * 20_000)
    answer = b'{"model_name":"wide","model_version":"1","outputs":[%s]}' % y
    return Example("/v2/models/wide/infer", body, answer)
