"""Routes whose bodies name the model: embeddings and rerank, as OpenAI's, Cohere's and TEI's clients send them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import orjson
import pytest

from app.contract import CLASSES, Answer, IndexEntry
from app.errors import BadRequest, BadText, ModelFailed, NotReady
from app.http import infer as calls
from app.http.codecs.embeddings import Embeddings
from app.http.codecs.rerank import Rerank
from app.http.codecs.text_codec import TextCodec, cut_of

from ..catalog import KEY, LOCKED, FakeCatalog, served, spec
from ..echo import BULK, LIMITS, Caller, Echo, EchoLease, MakeCaller

PATH = "/v1/embeddings"


class VectorLease(EchoLease):
    def output(self, values: Any) -> Any:
        return np.array([[len(value), 1, 2] for value in values], np.float32)


@pytest.fixture
def model() -> Echo:
    """A model that makes a vector of a text."""
    plain = served("echo", (spec("text", "BYTES"),), (spec("embedding", "FP32", 3),))
    return Echo(plain.info, plain.model, lease_type=VectorLease)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "echo", "input": ["a", "bc"], **fields}).encode()


@pytest.mark.parametrize("off_loop", [False, True])
async def test_the_body_is_answered_by_the_model_that_it_names(
    call: Caller, off_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if off_loop:
        monkeypatch.setattr(calls, "OFF_LOOP_BYTES", 1)
    reply = await call(f"{PATH}?timeout_ms=5&priority=3", body(), BULK)
    assert [one["embedding"] for one in reply.json()["data"]] == [[1, 1, 2], [2, 1, 2]]
    asked = {"rows": 2, "klass": "best_effort", "priority": 3, "timeout_us": 5000}
    assert asked.items() <= call.model.asked.items()
    assert call.model.finished == ["ok"]


@pytest.mark.parametrize(
    ("sent", "status", "param", "code"),
    [
        (body(model="ekko"), 404, "model", "not_found"),
        (b"{", 400, None, "bad_request"),
        (b"[]", 400, None, "bad_request"),
        (body() + b" " * 900, 413, None, "too_large"),
        (body(truncate=True), 400, "truncate", "bad_request"),  # which it could not
    ],
)
async def test_what_is_wrong_has_the_body_of_openai(
    call: Caller, sent: bytes, status: int, param: str | None, code: str
) -> None:
    reply = await call(PATH, sent)
    told = {"type": "invalid_request_error", "param": param, "code": code, "message": reply.error["message"]}
    assert (reply.status, reply.error) == (status, told)


async def test_errors_of_the_server_have_it_too(caller: MakeCaller, model: Echo) -> None:
    call = caller(auth=LOCKED)
    refused = await call(PATH, body())
    assert (refused.status, refused.error["type"]) == (401, "authentication_error")
    model.full = frozenset(CLASSES)
    full = await call(PATH, body(), KEY)
    assert (full.status, full.error["type"]) == (429, "rate_limit_error")
    assert int(full.headers[b"retry-after"]) >= 4
    model.full, model.fails = frozenset(), ModelFailed("it raised")
    failed = await call(PATH, body(), KEY)
    assert (failed.status, failed.error["type"]) == (500, "server_error")
    assert model.finished == ["queue_full", "model_failed"]


TEXT, VECTOR = (spec("text", "BYTES"),), (spec("embedding", "FP32", 3),)
VECTORS = served("vectors", TEXT, VECTOR)
OTHER = served("other", (spec("x", "FP32", 4),), VECTOR)


def opened(body: Any) -> Embeddings:
    return Embeddings().with_body(orjson.dumps(body), LIMITS)


def embedded(body: dict[str, Any], values: Any) -> dict[str, Any]:
    codec = opened(body)
    call = codec.decode(VECTORS, {}, b"", LIMITS)
    answer = Answer([np.array(values, np.float32)], 0, 0, 1)
    found: dict[str, Any] = orjson.loads(codec.encode(VECTORS, call, answer)[0])
    return found


def test_the_body_chooses_the_model_and_its_texts_are_rows() -> None:
    for value, texts in (("a", [b"a"]), (["a", ""], [b"a", b""]), (["\u00df"], ["\u00df".encode()])):
        call = opened({"input": value, "user": "me"}).decode(VECTORS, {}, b"", LIMITS)
        assert (call.rows, call.arrays[0].tolist()) == (len(texts), texts)
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
    starting: Any = FakeCatalog({}, [IndexEntry("vectors", "1", "LOADING", required=True)])
    with pytest.raises(NotReady, match=r"vector of a text does not serve yet; not ready: vectors$"):  # to be sent again
        opened({}).choose(starting)


def test_answers() -> None:
    values = [[3.0, 4.0, 0.1], [0.0, 1.0, 0.0]]
    assert embedded({"input": ["a", "b"]}, values) == {
        "object": "list", "model": "vectors", "usage": {"prompt_tokens": 0, "total_tokens": 0},
        "data": [{"object": "embedding", "index": index, "embedding": values[index]} for index in range(2)],
    }  # fmt: skip
    packed = embedded({"input": ["a", "b"], "encoding_format": "base64"}, values)
    found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() for one in packed["data"]]
    assert found == np.array(values, np.float32).tolist()
    cut = embedded({"input": ["a", "b"], "dimensions": 2}, values)
    assert [one["embedding"] for one in cut["data"]] == [pytest.approx([0.6, 0.8]), [0.0, 1.0]]
    one = embedded({"input": "a", "normalize": True, "user": "me", "priority": 0, "truncate": None}, values[:1])
    assert one["data"][0]["embedding"] == pytest.approx((np.array(values[0]) / np.linalg.norm(values[0])).tolist())
    unusual = [[0, float("nan"), float("inf")], [0.0, 1.0, 0.0]]
    plain = embedded({"input": ["a", "b"]}, unusual)
    assert [one["embedding"] for one in plain["data"]] == [[0, None, None], [0, 1, 0]]
    packed = embedded({"input": ["a", "b"], "encoding_format": "base64"}, unusual)
    assert packed["data"][0]["embedding"] == base64.b64encode(np.array(unusual[0], "<f4").tobytes()).decode()


INPUTS = (spec("query", "BYTES"), spec("document", "BYTES"))
RANKER = served("ranker", INPUTS, (spec("score", "FP32"), spec("raw_score", "FP32")))
PLAIN = served("plain", INPUTS, (spec("score", "FP32"),))
TEXTS = ["a", "b", "c"]


def ranked(body: dict[str, Any], scores: Sequence[float] = (0.25, 0.75, 0.25)) -> Any:
    codec = Rerank().with_body(orjson.dumps(body), LIMITS)
    call = codec.decode(RANKER, {}, b"", LIMITS)
    assert [array.tolist() for array in call.arrays] == [[b"q"] * 3, [b"a", b"b", b"c"]]
    answer = Answer([np.array(scores, np.float32), np.array([-1, 1, -1], np.float32)], 0, 0, 1)
    return orjson.loads(codec.encode(RANKER, call, answer)[0])


def test_a_text_whose_score_is_nan_is_last_and_has_none() -> None:
    found = ranked({"query": "q", "documents": TEXTS}, (float("nan"), 0.25, 0.5))["results"]
    assert [(one["index"], one["relevance_score"]) for one in found] == [(2, 0.5), (1, 0.25), (0, None)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"documents": TEXTS}, [(1, 0.75, None), (0, 0.25, None), (2, 0.25, None)]),
        ({"documents": [{"text": text} for text in TEXTS], "top_n": 2}, [(1, 0.75, None), (0, 0.25, None)]),
        ({"documents": TEXTS, "top_n": 1, "return_documents": True}, [(1, 0.75, {"text": "b"})]),
        ({"documents": TEXTS, "top_n": 1, "return_text": True}, [(1, 0.75, {"text": "b"})]),
    ],
)
def test_coheres(body: dict[str, Any], expected: list[Any]) -> None:
    found = ranked({"query": "q", **body})
    assert [(one["index"], one["relevance_score"], one.get("document")) for one in found["results"]] == expected
    assert (found["model"], found["usage"]) == ("ranker", {"total_tokens": 0})


def test_those_of_text_embeddings_inference() -> None:
    body = {"query": "q", "texts": TEXTS, "truncate": False}
    order = [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}, {"index": 2, "score": 0.25}]
    assert ranked(body) == order
    assert ranked({**body, "return_text": True})[0] == {"index": 1, "text": "b", "score": 0.75}
    assert [one["score"] for one in ranked({**body, "raw_scores": True})] == [1, -1, -1]


def test_a_query_is_held_once_and_not_at_all_for_too_many_texts() -> None:
    """A body of 1 MiB with 150,000 texts made 14 GB of it."""
    asked = {"query": "q" * 50, "texts": ["a"] * 1024}
    limits = replace(LIMITS, json=1 << 20)
    queries, _ = Rerank().with_body(orjson.dumps(asked), limits).decode(RANKER, {}, b"", LIMITS).arrays
    assert {id(one) for one in queries} == {id(queries[0])}
    asked["texts"] += ["a"]
    with pytest.raises(BadRequest, match=r"^1025 rows in one request: the queue of model 'ranker' holds 1024"):
        Rerank().with_body(orjson.dumps(asked), limits).decode(RANKER, {}, b"", LIMITS)


@pytest.mark.parametrize(
    ("codec", "body", "model", "param", "message"),
    [
        (Embeddings(), {}, VECTORS, "input", "missing; expected a list of at least one text"),
        (Embeddings(), {"input": ["a", None]}, VECTORS, "input[1]", "expected a text, got None"),
        (Embeddings(), {"input": [[1, 2]]}, VECTORS, "input", "expected a text or a list of texts, got ids of tokens"),
        (Embeddings(), {"input": "a", "encoding_format": "hex"}, VECTORS, "encoding_format",
         "expected float or base64"),
        (Embeddings(), {"input": "a", "dimensions": 4}, VECTORS, "dimensions", "expected 1 to 3, as the model's"),
        (Embeddings(), {"input": "a"}, OTHER, "model", "expected a model that makes a vector of a text, got 'other'"),
        (Embeddings(), {"input": "a", "input_type": "query"}, VECTORS, "input_type", "expected nothing, got"),
        (Embeddings(), {"input": "a", "normalize": False}, VECTORS, "normalize", "expected true"),
        (Embeddings(), {"input": "a", "normalize": 1}, VECTORS, "normalize", "expected true"),
        (Embeddings(), {"input": "a", "encoding_format": ""}, VECTORS, "encoding_format", "expected float or"),
        (Rerank(), {"query": "q", "documents": TEXTS, "rank_fields": ["a"]}, RANKER, "rank_fields", "unknown field"),
        (Embeddings(), {"input": [["a"]]}, VECTORS, "input[0]", "expected a text, got ['a']"),
        (Rerank(), {"query": "q", "documents": TEXTS, "texts": TEXTS}, RANKER, "texts", "expected nothing beside"),
        (Rerank(), {"query": "q", "documents": TEXTS, "return_documents": "no"}, RANKER, "return_documents",
         "expected true or false, got 'no'"),
        (Rerank(), {"query": "q", "texts": TEXTS, "return_text": 1}, RANKER, "return_text", "expected true or false"),
        (Rerank(), {"query": "q", "texts": TEXTS, "raw_scores": 0}, RANKER, "raw_scores", "expected true or false"),
        (Rerank(), {"documents": TEXTS}, RANKER, "query", "missing; expected a text"),
        (Rerank(), {"query": "q", "texts": []}, RANKER, "texts", "expected a list of at least one text"),
        (Rerank(), {"query": "q", "documents": ["a", {"t": "b"}]}, RANKER, "documents[1]", "expected a text"),
        (Rerank(), {"query": "q", "documents": TEXTS, "top_n": 0}, RANKER, "top_n", "expected a number of at least 1"),
        (Rerank(), {"query": "q", "texts": TEXTS, "raw_scores": True}, PLAIN, "raw_scores", "expected false, since"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(codec: TextCodec, body: dict[str, Any], model: Any, param: str, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        codec.with_body(orjson.dumps(body), LIMITS).decode(model, {}, b"", LIMITS)
    assert raised.value.param == param
    assert raised.value.message.startswith(f"{param}: {message}")


@pytest.mark.parametrize(
    ("name", "param"),
    [("query", "query"), ("document", "documents[1]"), ("query and document", "query and documents[1]")],
)
def test_of_a_pair_that_is_too_long_both_are_named(name: str, param: str) -> None:
    """Its document alone may have one token."""
    codec = Rerank().with_body(orjson.dumps({"query": "q", "documents": TEXTS}), LIMITS)
    assert codec.bad_text_error(BadText(name, 1, "too long")).param == param


CUTS: dict[str, Any] = {"truncate": True, "truncate_prompt_tokens": 4, "max_tokens_per_doc": 5}


@pytest.mark.parametrize(("first", "second"), list(permutations(CUTS, 2)))
def test_of_two_cuts_the_first_that_the_client_sends_is_named(first: str, second: str) -> None:
    """Not one or the other, by the seed of Python's hashes."""
    with pytest.raises(BadRequest, match=f"^{first}: expected nothing beside {second}$"):
        cut_of({first: CUTS[first], "user": "me", second: CUTS[second]}, None)
