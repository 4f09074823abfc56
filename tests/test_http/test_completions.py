"""OpenAI's completions, in process: what a request asks of the model, and what its client reads."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from app.contract import Answers, Array, Front, TextCut, Translated
from app.errors import BadText, ModelFailed
from app.models.decoders.parameters import Parameters
from app.models.tasks.task_specs import WRITTEN

from .echo import Caller
from .test_streaming import Reader, answered
from .writers import Words, Writer, writer

PLAIN, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "one two"}]


class Talk(Words):
    """Reads a conversation as the words of its messages; `no` is what its template refuses."""

    messages: Any = None  # of the last call

    def read(self, calls: Any, cut: TextCut | None = None) -> list[Translated]:
        return [self._conversation(json.loads(value)) for (values,) in calls for value in values]

    def _conversation(self, messages: Any) -> Translated:
        self.messages = messages
        if messages[-1]["content"] == "no":
            raise BadText("messages", None, "refused by the model's chat template: no")
        lengths: Array = np.array([sum(len(one["content"].split()) for one in messages)], np.int64)
        return Translated([lengths])


class Ids(Words):
    """Reads the tokens of prompts."""

    def read(self, calls: Any, cut: TextCut | None = None) -> list[Translated]:
        return [Translated([np.array([len(json.loads(value)) for value in values], np.int64)]) for (values,) in calls]


@pytest.fixture
def model() -> Writer:
    made = writer()
    assert made.model.front is not None
    made.model.front.chat, made.model.front.ids = (Front(one, Answers(WRITTEN)) for one in (Talk(), Ids()))
    return made


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "echo", **fields}).encode()


async def test_whole_answers(call: Caller) -> None:
    found = await answered(call, PLAIN, body(prompt=["a b", "c"]), "d e f", "g")
    assert found.pop("id").startswith("cmpl-")
    assert found.pop("created") > 0
    end = {"logprobs": None, "finish_reason": "length"}
    assert found == {
        "object": "text_completion", "model": "echo",
        "choices": [{"text": "d e f", "index": 0, **end}, {"text": "g", "index": 1, **end}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }  # fmt: skip
    parts = [{"type": "text", "text": "three "}, {"type": "text", "text": "four"}]
    talk = [*HELLO, {"role": "assistant", "content": "yes"}, {"role": "user", "content": parts}]
    found = await answered(call, CHAT, body(messages=talk), "five")
    assert found["id"].startswith("chatcmpl-")
    assert (found["object"], found["usage"]["prompt_tokens"]) == ("chat.completion", 5)
    message = {"role": "assistant", "content": "five", "refusal": None}
    assert found["choices"] == [{"message": message, "index": 0, **end}]


@pytest.mark.parametrize("path", [PLAIN, CHAT])
@pytest.mark.parametrize("counts", [False, True])
async def test_a_stream(model: Writer, path: str, counts: bool) -> None:
    reader = Reader(model)
    options = {"stream_options": {"include_usage": True}} if counts else {}
    sent = {"messages": HELLO} if path == CHAT else {"prompt": "one two"}
    await reader.begin(path, body(**sent, stream=True, **options))
    for tokens, piece in enumerate(("three", " four"), 1):
        await reader.piece(piece, tokens)
    await reader.end("three four five")
    *chunks, done = reader.events
    assert done == "[DONE]"
    heads = {(one["id"], one["created"], one["model"], one["object"]) for one in chunks}
    assert len(heads) == 1
    if counts:
        last = chunks.pop()
        usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
        assert (last["choices"], last["usage"]) == ([], usage)
    assert all(("usage" in one) == counts and not one.get("usage") for one in chunks)
    choices = [one["choices"][0] for one in chunks]
    assert [one["finish_reason"] for one in choices] == [None, None, None, "stop"]
    if path == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": "three"}
        assert [one["delta"] for one in choices[1:]] == [{"content": " four"}, {"content": " five"}, {}]
    else:
        assert [one["text"] for one in choices] == ["three", " four", " five", ""]


async def test_prompts_may_be_tokens(call: Caller) -> None:
    """As lm-eval sends them, several at a time."""
    for prompt, texts, tokens in (([5, 6, 7], ["a"], 3), ([[5, 6, 7], [8]], ["a", "b"], 4)):
        found = await answered(call, PLAIN, body(prompt=prompt, max_tokens=3), *texts)
        assert found["usage"]["prompt_tokens"] == tokens


async def test_too_many_prompts_are_not_read(call: Caller, model: Writer) -> None:
    """An empty one among them would be named, if they were."""
    model.info = replace(model.info, batching=model.info.batching.model_copy(update={"max_queue": 2}))
    error = (await call(PLAIN, body(prompt=["a", "", "b"]))).error
    assert error["message"].startswith("3 rows in one request: the queue of model 'echo' holds 2; send")


async def test_v1_takes_parameters(call: Caller, model: Writer) -> None:
    path = "/v1/models/echo:predict"
    sent = json.dumps({"instances": ["one"], "parameters": {"max_tokens": 3, "truncate": 5}}).encode()
    await answered(call, path, sent, "two")
    assert model.asked["parameters"] == {"max_tokens": 3}
    assert model.model.front.reader.cut == TextCut(5)  # type: ignore[union-attr]
    for none in ([1], [], 0, False, ""):
        sent = json.dumps({"instances": ["one"], "parameters": none}).encode()
        assert (await call(path, sent)).error == "parameters: expected an object"


#: Bodies of vllm bench serve, guidellm, lm-eval and AIPerf.
BENCHMARKS: list[tuple[str, dict[str, Any]]] = [
    (PLAIN, {"prompt": "one", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 9, "logprobs": None,
             "ignore_eos": True, "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}], "temperature": 0.0,
            "max_completion_tokens": 9, "stream_options": {"include_usage": True}, "ignore_eos": False,
            "top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}),
    (PLAIN, {"prompt": "one", "max_tokens": 9, "stop": None, "ignore_eos": True,
             "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    (PLAIN, {"prompt": "one", "max_tokens": 9,
             "stream_options": {"include_usage": False, "continuous_usage_stats": True}}),
    (PLAIN, {"prompt": [[5, 6]], "max_tokens": 9, "temperature": 0, "stop": ["\n\n", "</s>"], "seed": 1234}),
    (CHAT, {"messages": HELLO, "max_tokens": 9, "temperature": 0, "stop": ["\n"], "seed": 1234}),
    (PLAIN, {"prompt": ["one"], "max_tokens": 9, "min_tokens": 9, "ignore_eos": True}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "asked"), BENCHMARKS)
async def test_bodies_of_benchmarks(call: Caller, model: Writer, path: str, asked: dict[str, Any]) -> None:
    if "stream_options" not in asked:
        found = await answered(call, path, body(**asked), "two")
        assert found["usage"]["completion_tokens"] == 1
        return
    reader = Reader(model)
    await reader.begin(path, body(stream=True, **asked))
    await reader.piece("two", 1)
    await reader.end("two")
    *events, done = reader.events
    assert done == "[DONE]"
    if not asked["stream_options"]["include_usage"]:
        assert not any("usage" in event for event in events)
        return
    first, *_, last = events
    assert last["usage"]["completion_tokens"] == 1
    each = asked["stream_options"].get("continuous_usage_stats")
    assert first["usage"] == ({"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3} if each else None)


async def test_conversations_as_other_servers_keep_them(call: Caller, model: Writer) -> None:
    """The template gets each content as one text, and the arguments of tools as objects."""
    tool = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    talk = [
        {"role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        {"role": "user", "content": "one", "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [tool]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}]},
        {"role": "assistant", "content": None, "refusal": "no more"},
        {"role": "user", "content": "three"},
    ]
    await answered(call, CHAT, body(messages=talk, add_special_tokens=False), "four")
    messages = model.model.front.chat.reader.messages  # type: ignore[union-attr]
    assert [one["content"] for one in messages] == ["be brief", "one", "", "two", "never", "no more", "three"]
    assert messages[2]["tool_calls"] == [{**tool, "function": {"name": "f", "arguments": {"a": 1}}}]
    assert (messages[1]["name"], messages[3]["tool_call_id"]) == ("me", "c")
    for one in ({"role": "user", "content": None}, {"role": "assistant"}, {"role": "assistant", "tool_calls": [3]}):
        param = (await call(CHAT, body(messages=[one]))).error["param"]
        assert param in ("messages[0].content", "messages[0].tool_calls")


@pytest.mark.parametrize(
    ("asked", "cut"),
    [
        ({"truncate_prompt_tokens": 7}, TextCut(7, name="truncate_prompt_tokens")),
        ({"truncate_prompt_tokens": -1}, TextCut(name="truncate_prompt_tokens")),
        ({"truncate_prompt_tokens": 7, "truncation_side": "right"}, TextCut(7, False, name="truncate_prompt_tokens")),
        ({"truncate": True}, TextCut()),
        ({"truncate": "START"}, TextCut(left=True)),
        ({"truncate": False}, None),
        ({"truncation_side": "left"}, None),
    ],
)
async def test_how_a_prompt_is_cut(call: Caller, model: Writer, asked: dict[str, Any], cut: TextCut | None) -> None:
    await answered(call, PLAIN, body(prompt="one two", **asked), "three")
    assert model.model.front.reader.cut == cut  # type: ignore[union-attr]
    assert model.asked["parameters"] == {"do_sample": True}


async def test_a_stream_of_several_prompts(model: Writer) -> None:
    """Chunks name their prompt by index, in whatever order pieces come. Each prompt ends once: with its text, also
    while others are being written, or with all."""
    reader = Reader(model)
    options = {"stream_options": {"include_usage": True}}
    await reader.begin(PLAIN, body(prompt=["one two", "three", "four", "five"], stream=True, **options))
    for row, piece, tokens, reason in ((1, "b", 1, ""), (0, "a", 1, ""), (1, "c", 2, "stop"), (2, "", 1, "stop")):
        await reader.piece(piece, tokens, row, reason)
    model.last.piece("e", 1, 3, "length")
    await reader.end("ax", "bc", "", "e", reason="length")
    *chunks, last, done = reader.events
    assert done == "[DONE]"
    choices = [one["choices"][0] for one in chunks]
    assert [(one["index"], one["text"], one["finish_reason"]) for one in choices] == [
        (1, "b", None), (0, "a", None), (1, "c", None), (1, "", "stop"), (2, "", None), (2, "", "stop"),
        (0, "x", None), (0, "", "length"), (3, "e", None), (3, "", "length"),
    ]  # fmt: skip
    assert last["usage"]["prompt_tokens"] == 5
    assert model.sent == [0, 1]  # the first piece of all, and the second of a prompt


async def test_an_error_in_a_stream(model: Writer) -> None:
    reader = Reader(model)
    await reader.begin(PLAIN, body(prompt="one", stream=True))
    model.last.piece("two", 1)
    await reader.fail(ModelFailed("it raised"))
    error = {"message": "it raised", "type": "server_error", "param": None, "code": "model_failed"}
    assert reader.events[1:] == [{"error": error}]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, {"do_sample": True}),  # OpenAI's temperature is 1
        ({"max_tokens": 5, "temperature": 0, "stop": ["a"], "do_sample": False},
         {"max_new_tokens": 5, "temperature": 0, "stop": ("a",), "do_sample": False}),
        ({"max_completion_tokens": 6, "max_tokens": None}, {"max_new_tokens": 6, "do_sample": True}),
        ({"max_completion_tokens": 6, "max_tokens": 9}, {"max_new_tokens": 6, "do_sample": True}),
        ({"n": 1, "echo": False, "logprobs": None, "frequency_penalty": 0.0, "tools": [], "user": "me"},
         {"do_sample": True}),
    ],
)  # fmt: skip
async def test_what_the_model_is_asked(
    call: Caller, model: Writer, asked: dict[str, Any], given: dict[str, Any]
) -> None:
    await answered(call, f"{PLAIN}?timeout_ms=5&total_timeout_ms=7", body(prompt="one", **asked), "two")
    assert Parameters.read(model.asked["parameters"]).model_dump(exclude_unset=True) == given
    assert (model.asked["timeout_us"], model.asked["total_timeout_us"]) == (5000, 7000)


@pytest.mark.parametrize(
    ("path", "asked", "param", "message"),
    [
        (PLAIN, {"prompt": ["a", ""]}, "prompt[1]", "expected at least one token, got 0"),
        (PLAIN, {"prompt": [[1], "a"]}, "prompt[0]", "expected a text"),
        (PLAIN, {"prompt": "a", "messages": HELLO}, "messages", ""),
        (CHAT, {"prompt": "a", "messages": HELLO}, "prompt", ""),
        (PLAIN, {"prompt": "a", "n": 2}, "n", "expected 1, got 2"),
        (PLAIN, {"prompt": "a", "logprobs": 0}, "logprobs", "expected False, got 0: probabilities of"),
        (PLAIN, {"prompt": "a", "truncate": "MIDDLE"}, "truncate", "expected true, false, NONE, START, END or a"),
        (PLAIN, {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "expected a number of at"),
        (PLAIN, {"prompt": "a", "max_tokens_per_doc": 9}, "max_tokens_per_doc", "not accepted: this model reads"),
        (PLAIN, {"prompt": "a", "max_tokens": 0}, "max_tokens", "expected at least 1, got 0"),
        (PLAIN, {"prompt": "a", "min_tokens": 4, "max_tokens": 3}, "min_tokens", "expected at most the 3 of max_tok"),
        (PLAIN, {"prompt": "a", "min_p": 0.1}, "min_p", "expected 0, got 0.1: there are top_k and top_p"),
        (PLAIN, {"prompt": "a", "seed": 1, "random_seed": 2}, "random_seed", "expected the value of seed, got 2"),
        (PLAIN, {"prompt": "a", "temprature": 1, **dict.fromkeys("bcd", 2)}, "temprature", "unknown key; expected one"),
        (PLAIN, {"prompt": "a", "stream_options": {}}, "stream_options", "expected nothing without stream"),
        (PLAIN, {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
         "stream_options.include_usage", "expected true or false"),
        (CHAT, {"messages": HELLO, "stream": True, "stream_options": {"include_obfuscation": True}},
         "stream_options.include_obfuscation", "expected include_usage and continuous"),
        (CHAT, {"messages": ["a"]}, "messages[0]", "expected an object with role and content"),
        (CHAT, {"messages": [*HELLO, {"content": "a"}]}, "messages[1].role", "missing; expected a text"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]",
         "expected a part of type text"),
        (CHAT, {"messages": [{"role": "user", "content": "no"}]}, "messages", "refused by the model's chat template"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(call: Caller, path: str, asked: dict[str, Any], param: str, message: str) -> None:
    reply = await call(path, body(**asked))
    told = {name: reply.error[name] for name in ("type", "param", "code")}
    assert (reply.status, told) == (400, {"type": "invalid_request_error", "param": param, "code": "bad_request"})
    assert reply.error["message"].startswith(f"{param}: {message}")


async def test_a_model_without_a_chat_template(call: Caller, model: Writer) -> None:
    model.model.front.chat = None  # type: ignore[union-attr, misc]
    error = (await call(CHAT, body(messages=HELLO))).error
    assert error["message"] == "model: 'echo' has no chat template; ask it with /v1/completions"


#: What each field of OpenAI's clients may say beside its default; one that is not here is a 400 that names it.
TAKEN: dict[str, Any] = {
    "max_tokens": 5, "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.5, "seed": 1, "stop": ["a"],
    "stream": True, "model": "echo", "prompt": "one", "messages": HELLO,
    "user": "me", "metadata": {"a": "b"}, "parallel_tool_calls": False, "prompt_cache_key": "a",
    "prompt_cache_options": {}, "prompt_cache_retention": "24h", "safety_identifier": "me",
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "resource"), [(PLAIN, openai.resources.Completions), (CHAT, openai.resources.chat.Completions)]
)
async def test_every_field_of_its_client_is_taken_or_refused_by_name(
    call: Caller, path: str, resource: type[Any]
) -> None:
    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}  # the client's, not the API's
    fields = set(inspect.signature(resource.create).parameters) - own
    needed = {"prompt": "one"} if path == PLAIN else {"messages": HELLO}
    for name in sorted(fields - set(TAKEN)):
        error = (await call(path, body(**needed, **{name: "odd"}))).error
        assert (error["param"], error["type"]) == (name, "invalid_request_error")
    for name in sorted(fields & set(TAKEN) - {"stream"}):
        await answered(call, path, body(**{**needed, name: TAKEN[name]}), "two")
