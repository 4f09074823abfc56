"""`/rerank`: Cohere's bodies and those of Text Embeddings Inference, each with its own answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from app.contract import Answer
from app.errors import BadRequest
from app.http.codecs.rerank import Rerank

from ..catalog import served, spec
from ..echo import LIMITS

INPUTS = (spec("query", "BYTES"), spec("document", "BYTES"))
RANKER = served("ranker", INPUTS, (spec("score", "FP32"), spec("raw_score", "FP32")))
PLAIN = served("plain", INPUTS, (spec("score", "FP32"),))
TEXTS = ["a", "b", "c"]


def answered(body: dict[str, Any]) -> Any:
    codec = Rerank().with_body(orjson.dumps(body), LIMITS)
    call = codec.decode(RANKER, {}, b"", LIMITS)
    assert [array.tolist() for array in call.arrays] == [[b"q"] * 3, [b"a", b"b", b"c"]]
    scores, raw = np.array([0.25, 0.75, 0.25], np.float32), np.array([-1, 1, -1], np.float32)
    return orjson.loads(codec.encode(RANKER, call, Answer([scores, raw], 0, 0, 1))[0])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"documents": TEXTS}, [(1, 0.75, None), (0, 0.25, None), (2, 0.25, None)]),
        ({"documents": [{"text": text} for text in TEXTS], "top_n": 2}, [(1, 0.75, None), (0, 0.25, None)]),
        ({"documents": TEXTS, "top_n": 1, "return_documents": True}, [(1, 0.75, {"text": "b"})]),
    ],
)
def test_coheres(body: dict[str, Any], expected: list[Any]) -> None:
    found = answered({"query": "q", **body})
    assert [(one["index"], one["relevance_score"], one.get("document")) for one in found["results"]] == expected
    assert (found["model"], found["usage"]) == ("ranker", {"total_tokens": 0})


def test_those_of_text_embeddings_inference() -> None:
    body = {"query": "q", "texts": TEXTS, "truncate": True}
    order = [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}, {"index": 2, "score": 0.25}]
    assert answered(body) == order
    assert answered({**body, "return_text": True})[0] == {"index": 1, "text": "b", "score": 0.75}
    assert [one["score"] for one in answered({**body, "raw_scores": True})] == [1, -1, -1]


@pytest.mark.parametrize(
    ("body", "model", "param", "message"),
    [
        ({"documents": TEXTS}, RANKER, "query", "query: missing; expected a text"),
        ({"query": "q"}, RANKER, "documents", "documents: missing; expected a list of at least one text"),
        ({"query": "q", "texts": []}, RANKER, "texts", "texts: expected a list of at least one text"),
        ({"query": "q", "documents": ["a", {"t": "b"}]}, RANKER, "documents[1]", r"documents\[1\]: expected a text"),
        ({"query": "q", "documents": TEXTS, "top_n": 0}, RANKER, "top_n", "top_n: expected a number of at least 1"),
        ({"query": "q", "texts": TEXTS, "raw_scores": True}, PLAIN, "raw_scores", "raw_scores: expected false, since"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], model: Any, param: str, message: str) -> None:
    with pytest.raises(BadRequest, match=f"^{message}") as raised:
        Rerank().with_body(orjson.dumps(body), LIMITS).decode(model, {}, b"", LIMITS)
    assert raised.value.param == param
