"""Texts and images over HTTP: every protocol, one answer, as documented."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
import tiny_transformers as tiny

from .server import Server
from .texts import TASKS
from .wire import Wire, post


def predicted(server: Server, name: str, body: bytes, kind: str = "text/plain") -> Any:
    reply = server.post(f"/predict/{name}", body, {"Content-Type": kind})
    assert reply.status == 200, reply.body
    return reply.json()


def alike(found: dict[str, Any], one: dict[str, Any]) -> bool:
    """Whether two answers are one: batches of different sizes round differently."""
    first, second = ([each["score"] for each in answer["top"]] for answer in (found, one))
    labels = [[each["label"] for each in answer["top"]] for answer in (found, one)]
    return labels[0] == labels[1] and found["label"] == labels[0][0] and first == pytest.approx(second, abs=1e-5)


def test_every_protocol_gives_one_answer(texts: Server) -> None:
    text = "the unhappy cat sat"
    one = predicted(texts, "mood", text.encode())
    assert list(one) == ["label", "score", "top"]
    assert one["label"] in ("NEGATIVE", "NEUTRAL", "POSITIVE")
    assert sum(each["score"] for each in one["top"]) == pytest.approx(1)
    packed = {"b64": base64.b64encode(text.encode()).decode()}
    for value in (text, {"text": packed}, packed):
        assert alike(predicted(texts, "mood", json.dumps(value).encode(), "application/json"), one)
    several = predicted(texts, "mood", json.dumps([text, text]).encode(), "application/json")
    v1 = texts.post("/v1/models/mood:predict", {"instances": [text, packed, text]}).json()
    assert list(v1) == ["predictions"]
    assert (len(several), len(v1["predictions"])) == (2, 3)
    assert all(alike(found, one) for found in (*several, *v1["predictions"]))
    for shape in ([1], [1, 1]):
        tensor = {"name": "text", "shape": shape, "datatype": "BYTES", "data": [text]}
        labels, scores = texts.post("/v2/models/mood/infer", {"inputs": [tensor]}).json()["outputs"]
        top = [{"label": each, "score": score} for each, score in zip(labels["data"], scores["data"], strict=True)]
        assert alike({**top[0], "top": top}, one)
        assert [(output["name"], output["shape"]) for output in (labels, scores)] == [
            ("labels", [1, 3]), ("scores", [1, 3]),
        ]  # fmt: skip


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


async def test_texts_of_many_callers_at_once_are_each_answered_as_alone(texts: Server) -> None:
    """Those that are too long are refused by themselves."""
    choose = np.random.default_rng(7)
    words = [word for word in tiny.WORDS if word.isalpha()]
    asked = [" ".join(choose.choice(words, length)) for length in choose.integers(1, tiny.MOST - 1, 30)]
    asked += [text + " the cat" * tiny.MOST for text in asked[:4]]
    alone = [await asyncio.to_thread(predicted, texts, "mood", text.encode()) for text in asked[:-4]]
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(await Wire.open(texts.host)) for _ in asked]
        order = choose.permutation(len(asked))
        for wire, which in zip(wires, order, strict=True):
            wire.send(post("/predict/mood", asked[which].encode(), {"Content-Type": "text/plain"}))
        for wire, which in zip(wires, order, strict=True):
            answer = await wire.answer()
            if which >= len(alone):
                assert (answer.status, answer.json()["error"][:28]) == (400, "text: expected at most 32 to")
            else:
                assert alike(answer.json(), alone[which])
