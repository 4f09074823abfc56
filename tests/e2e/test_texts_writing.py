"""Models of texts through the clients of their users: of OpenAI, our own, and bodies as other clients send them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from starling_client import AsyncClient, BadRequest, Client

from .server import Server
from .texts import MOST, TASKS


@pytest.fixture
def client(texts: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{texts.host}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == sorted((*TASKS, "objects", "writer", "generate"))


def outputs_of(server: Server, model: str, inputs: dict[str, list[str]], **parameters: Any) -> dict[str, Any]:
    """The data of each output, by V2."""
    tensors = [{"name": name, "shape": [len(rows)], "datatype": "BYTES", "data": rows} for name, rows in inputs.items()]
    reply = server.post(f"/v2/models/{model}/infer", {"inputs": tensors, "parameters": parameters})
    assert reply.status == 200, reply.body
    return {one["name"]: one["data"] for one in reply.json()["outputs"]}


def test_vectors_are_those_of_v2(texts: Server, client: openai.OpenAI) -> None:
    rows = ["the cat sat on the mat", "unhappy"]
    (data,) = outputs_of(texts, "vectors", {"text": rows}).values()
    wanted = np.reshape(data, (2, -1))
    for model in ("vectors", "similar"):  # a model whose task is to compare gives its vectors, too
        as_base64 = client.embeddings.create(model=model, input=rows)  # the client's own choice
        as_floats = client.embeddings.create(model=model, input=rows, encoding_format="float")
        for found in (as_base64, as_floats):
            assert np.allclose([one.embedding for one in found.data], wanted, atol=1e-5)
            assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == (model, 8 + 4, 12)
    (one,) = client.embeddings.create(model="vectors", input=rows[0], dimensions=4).data
    assert np.allclose(one.embedding, wanted[0, :4] / np.linalg.norm(wanted[0, :4]), atol=1e-5)


def test_texts_are_ranked_as_v2_scores_them(texts: Server) -> None:
    """The formats of Cohere's clients and AIPerf, and of Text Embeddings Inference."""
    query, documents = "the cat sat", ["a dog ran in paris", "the cat", "bad"]
    score, raw = outputs_of(texts, "ranker", {"query": [query] * 3, "document": documents}).values()
    order = np.argsort(score)[::-1].tolist()
    asked = {"model": "ranker", "query": query, "documents": documents, "top_n": 2}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        found = texts.post(path, asked).json()
        assert [one["index"] for one in found["results"]] == order[:2]
        wanted = [score[index] for index in order[:2]]
        assert [one["relevance_score"] for one in found["results"]] == pytest.approx(wanted, abs=1e-5)
        assert found["usage"] == {"total_tokens": 3 * 6 + 5 + 2 + 1}
    found = texts.post("/rerank", {"query": query, "texts": documents, "raw_scores": True}).json()
    assert [one["index"] for one in found] == order
    assert [one["score"] for one in found] == pytest.approx([raw[index] for index in order], abs=1e-5)


def test_what_is_too_long_is_cut_where_that_is_asked_for(texts: Server) -> None:
    text = "the cat " * 40
    long = {"model": "ranker", "query": "the cat sat", "documents": ["the cat", text]}
    assert texts.post("/v1/rerank", long).status == 400
    assert texts.post("/v1/rerank", {**long, "max_tokens_per_doc": 2}).json()["usage"] == {"total_tokens": 2 * 8}
    for field, value, tokens in (("truncate", True, 32), ("truncate_prompt_tokens", 9, 9)):
        found = texts.post("/v1/embeddings", {"model": "vectors", "input": text, field: value}).json()
        assert found["usage"]["prompt_tokens"] == tokens
    assert outputs_of(texts, "ranker", {"query": [text], "document": [text]}, truncate=True)


# Models that write texts, over HTTP: whole and piece by piece, the same text in every protocol.


TEXT = "The ferry was late again"
RENDERED = f"u: {TEXT}\na:"
TALK: Any = [{"role": "user", "content": TEXT}]


def streamed(server: Server, **fields: Any) -> list[dict[str, Any]]:
    reply = server.post("/v2/models/writer/generate_stream", {"text_input": TEXT, **fields})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    return [json.loads(line.removeprefix(b"data: ")) for line in reply.body.split(b"\n\n")[:-1]]


@pytest.mark.parametrize("asked", [{}, {"temperature": 0.8, "seed": 3}, {"max_new_tokens": 1}])
def test_every_way_gives_one_text(texts: Server, asked: dict[str, Any]) -> None:
    expected = {name: row for name, (row,) in outputs_of(texts, "writer", {"text": [TEXT]}, **asked).items()}
    whole = texts.post("/v2/models/writer/generate", {"text_input": TEXT, "parameters": asked}).json()
    named = {"model_name": "writer", "model_version": "1", "text_output": expected.pop("generated_text")}
    assert whole == {**named, **expected}
    events = streamed(texts, **asked)
    assert "".join(one["text_output"] for one in events) == whole["text_output"]
    assert {**events[-1], "text_output": whole["text_output"]} == whole
    assert all(list(one) == ["model_name", "model_version", "text_output"] for one in events[:-1])
    assert len(events) > (asked.get("max_new_tokens") != 1)


def text_of(server: Server, text: str, **asked: Any) -> str:
    found: str = server.post("/v2/models/writer/generate", {"text_input": text, **asked}).json()["text_output"]
    return found


def test_completions_by_their_own_client(texts: Server, client: openai.OpenAI) -> None:
    found = client.completions.create(model="writer", prompt=TEXT, temperature=0)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (text_of(texts, TEXT), "length")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(TEXT), MOST)
    several = client.completions.create(prompt=[TEXT, "a"], model="writer", temperature=0, max_tokens=5)
    assert [one.text for one in several.choices] == [text_of(texts, text, max_tokens=5) for text in (TEXT, "a")]
    asked: dict[str, Any] = {"model": "writer", "prompt": TEXT, "seed": 3, "top_p": 0.9, "max_tokens": 30}
    sampled = client.completions.create(**asked).choices[0].text
    assert sampled == client.completions.create(**asked, extra_body={"do_sample": True}).choices[0].text
    assert sampled != client.completions.create(**asked, temperature=0).choices[0].text


def test_a_conversation_by_its_own_client(texts: Server, client: openai.OpenAI) -> None:
    expected = text_of(texts, RENDERED)
    found = client.chat.completions.create(model="writer", messages=TALK, temperature=0)
    assert found.choices[0].message.content == expected
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(RENDERED)
    options: Any = {"include_usage": True}
    *chunks, last = client.chat.completions.create(
        model="writer", messages=TALK, temperature=0, stream=True, stream_options=options
    )
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == expected
    assert [one.choices[0].finish_reason for one in chunks if one.choices[0].finish_reason] == ["length"]
    assert len(chunks) > 2
    assert (last.choices, last.usage) == ([], found.usage)


def test_errors_are_read_by_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="writer", messages=TALK, max_completion_tokens=0)
    assert raised.value.param == "max_completion_tokens"
    long = r"expected at most 95 tokens, as the model has 96 .*, got 240"
    with pytest.raises(openai.BadRequestError, match=long) as raised:
        client.completions.create(model="writer", prompt=TEXT * 10, stream=True)
    assert (raised.value.param, raised.value.code) == ("prompt", "context_length_exceeded")
    assert client.models.retrieve("writer").id == "writer"
    with pytest.raises(openai.NotFoundError, match="Request for unknown model: 'nobody' is not found"):
        client.models.retrieve("nobody")
    with pytest.raises(openai.NotFoundError, match="no such route: /v1/responses"):
        client.responses.create(model="writer", input=TEXT)


async def test_pieces_by_our_own_client(texts: Server) -> None:
    expected = text_of(texts, TEXT)
    with Client(f"http://{texts.host}") as client:
        pieces = list(client.stream("writer", TEXT))
        with pytest.raises(BadRequest, match=r"parameters\.max_new_tokens: expected at least 1"):
            next(client.stream("writer", TEXT, parameters={"max_new_tokens": 0}))
    assert "".join(pieces) == expected
    assert len(pieces) > 1
    async with AsyncClient(f"http://{texts.host}") as client_of_a_loop:
        assert "".join([piece async for piece in client_of_a_loop.stream("writer", TEXT)]) == expected


def test_what_is_counted(texts: Server) -> None:
    model = 'model="writer",version="1"}'
    names = [
        f'starling_tokens_total{{kind="prompt",{model}', f'starling_tokens_total{{kind="generated",{model}',
        f'starling_first_token_seconds_count{{class="realtime",{model}',
        f'starling_token_interval_seconds_count{{class="realtime",{model}',
    ]  # fmt: skip
    before = [texts.metric(name) for name in names]
    pieces = len(streamed(texts, max_new_tokens=20)) - 1
    read, written, streams, intervals = (texts.metric(name) - then for name, then in zip(names, before, strict=True))
    assert (read, written, streams) == (len(TEXT), 20, 1)
    assert 1 <= pieces <= intervals < 20
    assert texts.metric(f"starling_cache_places_used{{{model}") == 0
    assert texts.metric(f"starling_cache_places{{{model}") > 0
