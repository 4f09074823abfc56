"""`/v1/embeddings`: which bodies are taken, which model serves them, what is answered."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from app.contract import Answer
from app.errors import BadRequest, OutputNotJson
from app.http.codecs.embeddings import Embeddings

from ..catalog import FakeCatalog, served, spec
from ..echo import LIMITS

TEXT, VECTOR = (spec("text", "BYTES"),), (spec("embedding", "FP32", 3),)
VECTORS = served("vectors", TEXT, VECTOR)
OTHER = served("other", (spec("x", "FP32", 4),), VECTOR)


def opened(body: Any) -> Embeddings:
    return Embeddings().with_body(orjson.dumps(body), LIMITS)


def answered(body: dict[str, Any], values: Any) -> dict[str, Any]:
    codec = opened(body)
    call = codec.decode(VECTORS, {}, b"", LIMITS)
    answer = Answer([np.array(values, np.float32)], 0, 0, 1)
    found: dict[str, Any] = orjson.loads(codec.encode(VECTORS, call, answer)[0])
    return found


@pytest.mark.parametrize("value", ["a", ["a"], ["a", "ß"], [""]])
def test_texts_are_rows(value: Any) -> None:
    call = opened({"input": value, "user": "me"}).decode(VECTORS, {}, b"", LIMITS)
    texts = [value] if isinstance(value, str) else value
    assert (call.rows, call.arrays[0].tolist()) == (len(texts), [text.encode() for text in texts])


def test_answers() -> None:
    values = [[3.0, 4.0, 0.1], [0.0, 1.0, 0.0]]
    plain = answered({"input": ["a", "b"]}, values)
    assert [(one["object"], one["index"], one["embedding"]) for one in plain["data"]] == [
        ("embedding", 0, values[0]), ("embedding", 1, values[1]),
    ]  # fmt: skip
    assert (plain["object"], plain["model"], plain["usage"]) == (
        "list", "vectors", {"prompt_tokens": 0, "total_tokens": 0},
    )  # fmt: skip
    packed = answered({"input": ["a", "b"], "encoding_format": "base64"}, values)
    found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() for one in packed["data"]]
    assert found == np.array(values, np.float32).tolist()
    cut = answered({"input": ["a", "b"], "dimensions": 2}, values)
    assert [one["embedding"] for one in cut["data"]] == [pytest.approx([0.6, 0.8]), [0.0, 1.0]]
    with pytest.raises(OutputNotJson, match="'embedding' holds NaN"):
        answered({"input": "a"}, [[0, float("nan"), 0]])


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input: missing; expected a list of at least one text"),
        ({"input": ["a", None]}, "input[1]", r"input\[1\]: expected a text, got None"),
        ({"input": [[1, 2]]}, "input", "input: expected a text or a list of texts, got ids of tokens"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "encoding_format: expected float or base64"),
        ({"input": "a", "dimensions": 4}, "dimensions", "dimensions: expected 1 to 3, as the model's vectors have"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(BadRequest, match=f"^{message}") as raised:
        opened(body).decode(VECTORS, {}, b"", LIMITS)
    assert raised.value.param == param


def test_the_body_chooses_the_model() -> None:
    catalog: Any = FakeCatalog({"vectors": {"1": VECTORS}, "other": {"1": OTHER}})
    two: Any = FakeCatalog({"vectors": {"1": VECTORS}, "more": {"1": served("more", TEXT, VECTOR)}})
    assert opened({"model": "other"}).choose(catalog) == "other"
    assert opened({}).choose(catalog) == "vectors"
    for body, among, message in (
        ({}, two, "model: missing; expected one of more, vectors"),
        ({}, FakeCatalog({}), "model: missing; expected the name of a model that makes a vector of a text, of which"),
        ({"model": 3}, two, "model: expected the name of a model, got 3"),
    ):
        with pytest.raises(BadRequest, match=f"^{message}"):
            opened(body).choose(among)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=r"^model: expected a model that makes a vector of a text, got 'other'"):
        opened({"input": "a"}).decode(OTHER, {}, b"", LIMITS)  # type: ignore[arg-type]
