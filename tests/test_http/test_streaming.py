"""Streams: an answer begins with the first piece of its text, and whatever happens then, it ends with an event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from collected import Collected, header_of, told

from app.contract import TextCut
from app.errors import ClientGone, DeadlineExceeded, ModelFailed, NotReady
from app.http.cors import Cors
from app.models.decoders.parameters import Parameters

from .echo import Caller
from .writers import Writer, writer

GENERATE = "/v2/models/echo/generate"
STREAM = "/v2/models/echo/generate_stream"


@pytest.fixture
def model() -> Writer:
    return writer()


def body(**fields: Any) -> bytes:
    return json.dumps({"text_input": "one two", **fields}).encode()


class Reader:
    """A client of an in-memory connection whose answer is a stream."""

    def __init__(self, model: Writer, **options: Any) -> None:
        self.asking = Caller(model, "direct", **options)
        self.connection = self.asking.connection()
        self._read = 0

    def send(self, path: str, sent: bytes, *lines: bytes) -> None:
        head = b"".join(b"%s\r\n" % line for line in (b"Host: a", b"Content-Length: %d" % len(sent), *lines))
        self.connection.send(b"POST %s HTTP/1.1\r\n%s\r\n%s" % (path.encode(), head, sent))

    async def more(self) -> bytes:
        """What is written next, of head and chunks."""
        transport = self.connection.transport
        async with asyncio.timeout(10):
            while len(transport.written) == self._read:
                transport.wrote.clear()
                await transport.wrote.wait()
        found, self._read = transport.written[self._read :], len(transport.written)
        return found

    async def begin(self, path: str, sent: bytes, *lines: bytes) -> None:
        """Return when the model writes."""
        self.send(path, sent, *lines)
        await self.asking.model.ran.wait()

    async def piece(self, text: str, tokens: int, *more: Any) -> None:
        """The model writes, and it is read."""
        self.asking.model.leases[-1].piece(text, tokens, *more)
        await self.more()

    async def end(self, *texts: str, reason: str = "stop") -> None:
        self.asking.model.leases[-1].end(*texts, reason=reason)
        await self.connection.done()

    async def fail(self, error: Exception) -> None:
        self.asking.model.leases[-1].fail(error)
        await self.connection.done()

    @property
    def head(self) -> bytes:
        return self.connection.transport.written.partition(b"\r\n\r\n")[0]

    @property
    def events(self) -> list[Any]:
        """All of them, the chunks taken apart."""
        rest, data = self.connection.transport.written.partition(b"\r\n\r\n")[2], b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            data, rest = data + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert data.endswith(b"\n\n")
        texts = [event.removeprefix("data: ") for event in data.decode()[:-2].split("\n\n")]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]

    @property
    def texts(self) -> list[str]:
        """Of V2's events, the error of one that has none."""
        return [event.get("text_output", event.get("error")) for event in self.events]


@pytest.fixture
async def reader(model: Writer) -> AsyncIterator[Reader]:
    reader = Reader(model)
    yield reader
    await reader.connection.done()
    assert (model.open_leases, reader.asking.resources.bodies.held) == (0, 0)


async def answered(call: Caller, path: str, sent: bytes, *texts: str) -> Any:
    """The whole answer, of a model that writes these."""
    model: Any = call.model
    model.ran.clear()
    reply = asyncio.create_task(call(path, sent))
    await model.ran.wait()
    assert model.last.on_piece is None  # nobody reads along
    model.last.end(*texts, reason="length")
    answer = await reply
    assert (answer.status, answer.headers[b"content-type"]) == (200, b"application/json"), answer.body
    return answer.json()


async def test_the_text_in_one_answer(call: Caller, model: Writer) -> None:
    sent = body(id="7", parameters={"max_new_tokens": 5, "priority": 3})
    assert await answered(call, GENERATE, sent, "three four") == {
        "id": "7", "model_name": "echo", "model_version": "1", "text_output": "three four", "finish_reason": "length",
        "prompt_tokens": 2, "generated_tokens": 2,
    }  # fmt: skip
    assert (model.asked["parameters"], model.asked["priority"]) == ({"max_new_tokens": 5}, 3)


async def test_lists_of_one_element_and_fields_of_tensorrt_llm(call: Caller, model: Writer) -> None:
    """As genai-perf and the clients of Triton's backends send them."""
    sent = {
        "model": "echo", "text_input": ["one two"], "max_tokens": [5], "min_length": [5], "stop_words": [""],
        "bad_words": "", "stream": [False], "beam_width": 1, "random_seed": [3], "return_log_probs": False,
        "accumulate_tokens": True, "parameters": {"priority": [3], "length_penalty": 1.0, "end_id": 2},
    }  # fmt: skip
    found = await answered(call, GENERATE, json.dumps(sent).encode(), "three")
    assert found["text_output"] == "three"
    asked = Parameters.read(model.asked["parameters"]).model_dump(exclude_unset=True)
    assert asked == {"max_new_tokens": 5, "min_new_tokens": 5, "seed": 3, "stop_token_ids": frozenset({2})}
    assert model.asked["priority"] == 3


async def test_the_form_of_text_generation_inference(call: Caller, model: Writer, reader: Reader) -> None:
    sent = {
        "inputs": "one two",
        "parameters": {
            "max_new_tokens": 5, "do_sample": True, "temperature": 0.01, "top_p": 0.99, "truncate": 7,
            "ignore_eos_token": False, "details": True, "return_full_text": False, "watermark": False,
        },
    }  # fmt: skip
    await reader.begin(STREAM, json.dumps(sent).encode())
    await reader.piece("three", 1)
    await reader.end("three four")
    first, last = reader.events
    assert (first["token"]["text"], first["generated_text"], last["token"]["text"]) == ("three", None, " four")
    assert last["generated_text"] == "three four"
    assert (last["details"]["finish_reason"], last["details"]["generated_tokens"]) == ("eos_token", 2)
    assert model.model.front.reader.cut == TextCut(7)  # type: ignore[union-attr]
    found = await answered(call, GENERATE, json.dumps(sent).encode(), "three")
    assert found["generated_text"] == "three"
    assert (await call(GENERATE, b'{"inputs": 3}')).error == "inputs: expected a text, got 3"


async def test_pieces_are_sent_as_they_are_written(model: Writer, reader: Reader) -> None:
    await reader.begin(STREAM, body(), b"Accept-Encoding: gzip")
    model.last.piece("three", 1)
    first = await reader.more()
    assert first.endswith(b'"text_output":"three"}\n\n\r\n')
    for line in (
        b"HTTP/1.1 200 OK", b"content-type: text/event-stream; charset=utf-8", b"cache-control: no-cache",
        b"x-accel-buffering: no", b"transfer-encoding: chunked",
    ):  # fmt: skip
        assert line in reader.head.split(b"\r\n")
    assert b"content-encoding" not in reader.head
    assert model.finished == []
    await reader.piece(" fo", 4)
    model.last.piece("", 5, reason="stop")  # its end token; the answer has the reason, in the last event
    await asyncio.sleep(0)
    await reader.end("three four five " + "x" * 2000)
    named = {"model_name": "echo", "model_version": "1"}
    ended = {"finish_reason": "stop", "prompt_tokens": 2, "generated_tokens": 4}
    assert reader.events == [
        {**named, "text_output": "three"},
        {**named, "text_output": " fo"},
        {**named, "text_output": "ur five " + "x" * 2000, **ended},
    ]
    assert (model.finished, model.sent) == (["ok"], [0, 3, 1])


async def test_a_slow_reader_gets_what_has_been_written_meanwhile_as_one_event(model: Writer, reader: Reader) -> None:
    await reader.begin(STREAM, body())
    await reader.piece("a", 1)
    reader.connection.protocol.pause_writing()
    for count in range(50):
        model.last.piece("b", 2 + count)
        await asyncio.sleep(0)
    model.last.end("a" + "b" * 50 + "c")
    reader.connection.protocol.resume_writing()
    await reader.connection.done()
    assert "".join(reader.texts) == "a" + "b" * 50 + "c"
    assert len(reader.texts) <= 3  # that which waited for the client, and what came meanwhile: nothing is encoded early


@pytest.mark.parametrize(
    ("path", "sent", "message"),
    [
        (STREAM, b"{", "body: "),
        (STREAM, b"{}", "text_input: missing; expected a text"),
        (STREAM, body(text_input=""), "text_input: expected at least one token, got 0"),
        (STREAM, b'{"inputs": ""}', "inputs: expected at least one token, got 0"),
        (STREAM, body(parameters=3), "parameters: expected an object"),
        (STREAM, body(max_tokens=0), "parameters.max_tokens: expected at least 1, got 0"),
        (STREAM, body(parameters={"class": "fast"}), "parameters.class: expected realtime or best_effort"),
        (STREAM, body(stream=False), "parameters.stream: expected true here, got False; the other route is generate"),
        (GENERATE, body(stream=True),
         "parameters.stream: expected false here, got True; the other route is generate_s"),
        (STREAM, body(id=3), "id: expected a string"),
        (STREAM, body(max_tokens=2, parameters={"max_tokens": 3}),
         "parameters.max_tokens: expected the value of max_tokens, got 3"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_an_ordinary_answer(call: Caller, path: str, sent: bytes, message: str) -> None:
    reply = await call(path, sent)
    assert (reply.status, reply.headers[b"content-type"]) == (400, b"application/json")
    assert reply.error[: len(message)] == message


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFailed("it raised"), 500),
        (DeadlineExceeded("too late"), 504),
        (NotReady("the server has stopped before this call was answered"), 503),  # at its drain limit
    ],
)
async def test_an_error(call: Caller, model: Writer, reader: Reader, error: Exception, status: int) -> None:
    """An ordinary answer before the first event; then the last of the events, behind all that was written."""
    model.fails = error
    reply = await call(STREAM, body())
    assert (reply.status, reply.error) == (status, str(error))
    model.fails = None
    model.ran.clear()
    await reader.begin(STREAM, body())
    model.last.piece("three", 1)
    await reader.fail(error)
    assert reader.texts == ["three", str(error)]
    assert model.finished[1:] == [error.code]  # type: ignore[attr-defined]


async def test_a_piece_that_is_no_json_ends_the_stream_with_an_error(model: Writer, reader: Reader) -> None:
    await reader.begin(STREAM, body())
    await reader.piece("three", 1)
    model.last.piece("\ud800", 2)
    await reader.connection.done()
    assert reader.texts == ["three", "internal error: the server's log has the details"]
    assert model.finished == ["internal"]


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_leaves_ends_its_call(model: Writer, reader: Reader, reads: bool) -> None:
    await reader.begin(STREAM, body())
    await reader.piece("three", 1)
    if not reads:
        reader.connection.protocol.pause_writing()
        model.last.piece(" four", 2)
        await asyncio.sleep(0)
    reader.connection.hang_up()
    await reader.connection.done()
    assert model.finished == [ClientGone.code]
    model.last.piece(" four", 2)  # the step that was running


async def test_a_stream_is_observed_as_other_calls_are(model: Writer) -> None:
    collected = Collected()
    reader = Reader(model, tracer=collected.tracer, cors=Cors(["*"]))
    await reader.begin(STREAM, body(), b"X-Request-Id: mine", b"Origin: http://page")
    await reader.piece("three", 1)
    assert collected.spans() == []
    lines = dict(line.split(b": ") for line in reader.head.split(b"\r\n")[1:])
    await reader.end("three")
    span = collected.one()
    assert lines[b"traceparent"] == header_of(span)
    assert (told(span)["http.route"], told(span)["starling.rows"]) == ("/v2/models/{model}/generate_stream", 1)
    assert (lines[b"x-request-id"], lines[b"access-control-allow-origin"]) == (b"mine", b"*")
