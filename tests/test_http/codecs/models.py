"""Models that the codecs are tried with."""

from __future__ import annotations

from app.contract import ModelInfo

from ..catalog import spec

ECHO = ModelInfo("echo", "1", "pytorch", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))
TEXT = ModelInfo("text", "1", "pytorch", (spec("t", "BYTES", 1),), (spec("u", "BYTES", 1),))
BARE = ModelInfo("bare", "1", "pytorch", (spec("t", "BYTES"),), (spec("u", "BYTES"),))
TOKENS = ModelInfo(
    "tokens", "2", "pytorch",
    (spec("ids", "INT64", "n", bound=8), spec("mask", "BOOL", "n", bound=8)),
    (spec("out", "INT64", "n", bound=8), spec("sum", "FP64")),
)  # fmt: skip
