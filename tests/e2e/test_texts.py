"""Texts and images over HTTP: every protocol, one answer, as documented."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from .server import Server
from .texts import TASKS


def predicted(server: Server, body: Any, kind: str = "application/json") -> Any:
    reply = server.post("/predict/mood", body, {"Content-Type": kind})
    assert reply.status == 200, reply.body
    return reply.json()


def alike(found: dict[str, Any], one: dict[str, Any]) -> bool:
    """Whether two answers are one: batches of different sizes round differently."""
    first, second = ([each["score"] for each in answer["top"]] for answer in (found, one))
    labels = [[each["label"] for each in answer["top"]] for answer in (found, one)]
    return labels[0] == labels[1] and found["label"] == labels[0][0] and first == pytest.approx(second, abs=1e-5)


def test_every_protocol_gives_one_answer(texts: Server) -> None:
    text = "the unhappy cat sat"
    one = predicted(texts, text.encode(), "text/plain")
    assert list(one) == ["label", "score", "top"]
    assert one["label"] in ("NEGATIVE", "NEUTRAL", "POSITIVE")
    assert sum(each["score"] for each in one["top"]) == pytest.approx(1)
    packed = {"b64": base64.b64encode(text.encode()).decode()}
    for value in (text, {"text": packed}, packed):
        assert alike(predicted(texts, value), one)
    several = predicted(texts, [text, text])
    v1 = texts.post("/v1/models/mood:predict", {"instances": [text, packed, text]}).json()
    assert list(v1) == ["predictions"]
    assert (len(several), len(v1["predictions"])) == (2, 3)
    assert all(alike(found, one) for found in (*several, *v1["predictions"]))
    for shape in ([1], [1, 1]):
        tensor = {"name": "text", "shape": shape, "datatype": "BYTES", "data": [text]}
        labels, scores = texts.post("/v2/models/mood/infer", {"inputs": [tensor]}).json()["outputs"]
        top = [{"label": each, "score": score} for each, score in zip(labels["data"], scores["data"], strict=True)]
        assert alike({**top[0], "top": top}, one)
        assert {output["name"]: output["shape"] for output in (labels, scores)} == {"labels": [1, 3], "scores": [1, 3]}


def test_v1_has_the_entities_that_the_request_asks_for(texts: Server) -> None:
    asked = {"instances": ["anna ran in paris"], "parameters": {"aggregation": "simple"}}
    (found,) = texts.post("/v1/models/names:predict", asked).json()["predictions"]
    assert list(found) == ["entities"]


def test_documented_examples_work(texts: Server) -> None:
    """The inputs of a task are text, or a file as base64. Routes without a model in their path have it in the body."""
    paths = texts.get("/openapi.json").json()["paths"]
    by_body = {"/v1/embeddings": "vectors", "/v1/rerank": "ranker", "/rerank": "ranker"}
    for name in (*TASKS, "objects"):
        by_body |= dict.fromkeys((f"/v2/models/{name}/infer", f"/v1/models/{name}:predict", f"/predict/{name}"), "")
    for path, model in by_body.items():
        asked = paths[path]["post"]["requestBody"]["content"]["application/json"]["examples"]
        assert len(asked) >= 1
        for example in asked.values():
            value = {"model": model, **example["value"]} if model else example["value"]
            reply = texts.post(path, value)
            assert reply.status == 200, (path, reply.body)
