"""Models that the codecs are tried with, what is refused, and V2 for a model that is only described."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.contract import Answer, ModelInfo
from app.errors import BadRequest
from app.http.body import Limits
from app.http.codecs.base import DecodedCall
from app.http.codecs.v2 import V2

from ..catalog import served, spec

ECHO = ModelInfo("echo", "1", "pytorch", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))
TEXT = ModelInfo("text", "1", "pytorch", (spec("t", "BYTES", 1),), (spec("u", "BYTES", 1),))
BARE = ModelInfo("bare", "1", "pytorch", (spec("t", "BYTES"),), (spec("u", "BYTES"),))
TOKENS = ModelInfo(
    "tokens", "2", "pytorch",
    (spec("ids", "INT64", "n", bound=8), spec("mask", "BOOL", "n", bound=8)),
    (spec("out", "INT64", "n", bound=8), spec("sum", "FP64")),
)  # fmt: skip


Y = (spec("y", "FP32", 4),)
VECTOR = served("vector", (spec("x", "FP32", 4),), Y)
IMAGE = served("image", (spec("x", "UINT8", 2, 3),), Y)
SCALAR = served("scalar", (spec("x", "INT32"),), Y)
STRING = served("text", (spec("text", "BYTES", 1),), Y)
SEQUENCES = served("tokens", (spec("ids", "INT64", "tokens"), spec("mask", "INT64", "tokens")), Y)


def refused(words: list[str], decode: Callable[..., DecodedCall], *sent: Any) -> None:
    """The error has all these words."""
    with pytest.raises(BadRequest) as caught:
        decode(*sent)
    assert [word for word in words if word not in caught.value.message] == [], caught.value.message


def decode_v2(body: bytes, header_length: int | None, info: ModelInfo, json_limit: int) -> DecodedCall:
    """A V2 body decoded; `header_length` is the Inference-Header-Content-Length, None for JSON alone."""
    headers = {} if header_length is None else {b"inference-header-content-length": b"%d" % header_length}
    limits = Limits(body=len(body), json=json_limit, inflight=0, body_timeout_s=1, connections=1)
    return V2().decode(_served(info), headers, body, limits)


def encode_v2(call: DecodedCall, answer: Answer, info: ModelInfo) -> tuple[bytes, int | None]:
    return V2().encode(_served(info), call, answer)


def _served(info: ModelInfo) -> Any:
    return SimpleNamespace(info=info)
