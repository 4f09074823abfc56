"""Models that write texts, over HTTP: whole and piece by piece, the same text in every protocol."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from starling_client import AsyncClient, BadRequest, Client

from .server import PATIENCE_S, Server
from .texts import MOST

TEXT = "The ferry was late again"
RENDERED = f"u: {TEXT}\na:"
TALK: Any = [{"role": "user", "content": TEXT}]


@pytest.fixture
def client(texts: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{texts.host}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(server: Server, **fields: Any) -> tuple[http.client.HTTPResponse, list[Any]]:
    connection = server.connection()
    try:
        connection.request("POST", "/v2/models/writer/generate_stream", json.dumps({"text_input": TEXT, **fields}))
        answer = connection.getresponse()
        return answer, [json.loads(line.removeprefix(b"data: ")) for line in answer.read().split(b"\n\n")[:-1]]
    finally:
        connection.close()


@pytest.mark.parametrize("asked", [{}, {"temperature": 0.8, "seed": 3}, {"max_new_tokens": 1}])
def test_every_way_gives_one_text(texts: Server, asked: dict[str, Any]) -> None:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
    outputs = texts.post("/v2/models/writer/infer", {"inputs": [tensor], "parameters": asked}).json()["outputs"]
    expected = {one["name"]: one["data"][0] for one in outputs}
    whole = texts.post("/v2/models/writer/generate", {"text_input": TEXT, "parameters": asked}).json()
    named = {"model_name": "writer", "model_version": "1", "text_output": expected.pop("generated_text")}
    assert whole == {**named, **expected}
    head, events = streamed(texts, **asked)
    assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "".join(one["text_output"] for one in events) == whole["text_output"]
    assert {**events[-1], "text_output": whole["text_output"]} == whole
    assert all(list(one) == ["model_name", "model_version", "text_output"] for one in events[:-1])
    assert len(events) > (asked.get("max_new_tokens") != 1)


def text_of(server: Server, text: str, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.post("/v2/models/writer/generate", {"text_input": text, **asked}).json()
    return found


def test_completions_by_their_own_client(texts: Server, client: openai.OpenAI) -> None:
    expected = text_of(texts, TEXT)
    found = client.completions.create(model="writer", prompt=TEXT, temperature=0)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected["text_output"], "length")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(TEXT), MOST)
    several = client.completions.create(prompt=[TEXT, "a"], model="writer", temperature=0, max_tokens=5)
    assert [one.text for one in several.choices] == [
        text_of(texts, text, max_tokens=5)["text_output"] for text in (TEXT, "a")
    ]
    asked: dict[str, Any] = {"model": "writer", "prompt": TEXT, "seed": 3, "top_p": 0.9, "max_tokens": 30}
    sampled = client.completions.create(**asked).choices[0].text
    assert sampled == client.completions.create(**asked, extra_body={"do_sample": True}).choices[0].text
    assert sampled != client.completions.create(**asked, temperature=0).choices[0].text


def test_a_conversation_by_its_own_client(texts: Server, client: openai.OpenAI) -> None:
    expected = text_of(texts, RENDERED)
    found = client.chat.completions.create(model="writer", messages=TALK, temperature=0)
    assert found.choices[0].message.content == expected["text_output"]
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(RENDERED)
    options: Any = {"include_usage": True}
    *chunks, last = client.chat.completions.create(
        model="writer", messages=TALK, temperature=0, stream=True, stream_options=options
    )
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == expected["text_output"]
    assert [one.choices[0].finish_reason for one in chunks if one.choices[0].finish_reason] == ["length"]
    assert len(chunks) > 2
    assert (last.choices, last.usage) == ([], found.usage)


def test_errors_are_read_by_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="writer", messages=TALK, max_completion_tokens=MOST + 1)
    assert raised.value.param == "max_completion_tokens"
    with pytest.raises(openai.BadRequestError, match="at most"):
        client.completions.create(model="writer", prompt=TEXT * 10, stream=True)
    assert client.models.retrieve("writer").id == "writer"


async def test_pieces_by_our_own_client(texts: Server) -> None:
    expected = text_of(texts, TEXT)["text_output"]
    with Client(f"http://{texts.host}") as client:
        pieces = list(client.stream("writer", TEXT))
        with pytest.raises(BadRequest, match=r"parameters\.max_new_tokens: expected at most"):
            next(client.stream("writer", TEXT, parameters={"max_new_tokens": MOST + 1}))
    assert ("".join(pieces), len(pieces) > 1) == (expected, True)
    async with AsyncClient(f"http://{texts.host}") as client_of_a_loop:
        assert "".join([piece async for piece in client_of_a_loop.stream("writer", TEXT)]) == expected


def test_steps_by_our_own_client(texts: Server) -> None:
    """Of a model that writes lines until they end by themselves; the prompts of a call have one length."""
    lines = {
        "The ferry": " would be quicker if it did not wait, and cheaper if it waited longer.",
        "If you wa": "it for everyone, nobody will arrive.",
    }
    made, ended = {0: "", 1: ""}, []
    with Client(f"http://{texts.host}") as client:
        for found in client.steps("generate", [list(prompt.encode()) for prompt in lines]):
            made[found.row] += bytes(found.outputs["text"].tolist()).decode()
            ended += [found.row] if found.final else []
    assert [*made.values()] == [line + "\n" for line in lines.values()]
    assert ended == [0, 1]


def test_what_is_counted(texts: Server) -> None:
    model = 'model="writer",version="1"'
    names = [
        f'starling_tokens_total{{kind="prompt",{model}}}', f'starling_tokens_total{{kind="generated",{model}}}',
        f'starling_first_token_seconds_count{{class="realtime",{model}}}',
        f'starling_token_interval_seconds_count{{class="realtime",{model}}}',
    ]  # fmt: skip
    before = [texts.metric(name) for name in names]
    _, events = streamed(texts, max_new_tokens=20)
    after = [texts.metric(name) for name in names]
    read, written, streams, intervals = (now - then for now, then in zip(after, before, strict=True))
    assert (read, written, streams) == (len(TEXT), 20, 1)
    assert 1 <= len(events) - 1 <= intervals < 20
    assert texts.metric(f"starling_cache_places_used{{{model}}}") == 0
    assert texts.metric(f"starling_cache_places{{{model}}}") > 0


def test_a_stream_ends_before_a_stopping_server(texts: Server) -> None:
    """The last one: the server has gone then."""
    connection = texts.connection()
    connection.request("POST", "/v2/models/writer/generate_stream", json.dumps({"text_input": TEXT}))
    answer = connection.getresponse()
    texts.tell(signal.SIGTERM)
    lines = answer.read().split(b"\n\n")
    connection.close()
    assert json.loads(lines[-2].removeprefix(b"data: "))["finish_reason"] == "length"
    assert texts.process.wait(PATIENCE_S) == 0
