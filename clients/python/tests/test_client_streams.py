"""Texts piece by piece: what is asked, what comes, and that nothing is sent again behind the first piece."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from fake_server import Driven, failing

from starling_client import BadAnswer, ConnectionLost, Interrupted, Retry, TimedOut

Connect = Callable[..., Driven]


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of an answer, as it arrives; an exception is raised in its place."""

    def __init__(self, *chunks: bytes | Exception | Callable[[], None]) -> None:
        self.chunks = chunks
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            if callable(chunk):
                chunk()
            else:
                yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


class Writer:
    """Answers what its script says, one entry for each request."""

    def __init__(self, *script: httpx.Response | Exception | Chunks) -> None:
        self.script = list(script)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        told = self.script.pop(0)
        if isinstance(told, Exception):
            raise told
        return httpx.Response(200, stream=told) if isinstance(told, Chunks) else told


def event(text: str, **fields: Any) -> bytes:
    found = {"model_name": "writer", "text_output": text, **fields}
    return b"data: %s\n\n" % json.dumps(found, ensure_ascii=False).encode()


LAST = event("!", finish_reason="stop")


def pieces(client: Driven, *given: Any, **named: Any) -> list[str]:
    return list(written(client, *given, **named))


def written(client: Driven, *given: Any, **named: Any) -> Iterator[str]:
    """The pieces, from either client."""
    return streamed(client, client.client.stream(*given, **named))


def streamed(client: Driven, stream: Any) -> Iterator[Any]:
    if client.kind == "sync":
        yield from stream
        return
    try:
        while True:
            yield client._runner.run(anext(stream))
    except StopAsyncIteration:
        return
    finally:
        client._runner.run(stream.aclose())


def test_pieces_come_as_they_are_sent(connect: Connect) -> None:
    text = event("One\u2028, \x85zwei\n")  # separators of lines, of which one alone ends an event
    server = Writer(chunks := Chunks(text[:9], text[9:], event(" two") + event(" three"), LAST))
    named = {"version": 2, "timeout_ms": 1.5, "priority": 3, "service_class": "best_effort", "request_id": "mine"}
    found = pieces(connect(server), "writer", "The ferry", parameters={"max_new_tokens": 5}, **named)
    assert found == ["One\u2028, \x85zwei\n", " two", " three", "!"]
    (asked,) = server.asked
    assert asked.url.path == "/v2/models/writer/versions/2/generate_stream"
    assert json.loads(asked.content) == {
        "text_input": "The ferry", "parameters": {"max_new_tokens": 5, "timeout": 1500, "priority": 3},
    }  # fmt: skip
    assert (asked.headers["x-class"], asked.headers["x-request-id"]) == ("best_effort", "mine")
    assert chunks.closed


def test_refusals_are_sent_again_before_the_first_piece(connect: Connect) -> None:
    server = Writer(failing(503, Retry_After="2"), httpx.ConnectError("no"), Chunks(LAST))
    client = connect(server)
    assert pieces(client, "writer", "a") == ["!"]
    assert (len(client.waited), len(server.asked)) == (2, 3)


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        (b'data: {"error": "model \'writer\': the deadline passed"}\n\n', Interrupted, "the deadline passed"),
        (httpx.ReadError("reset"), ConnectionLost, "broke before the whole answer"),
        (httpx.ReadTimeout("slow"), TimedOut, "did not come from http://fake"),
        (b"", BadAnswer, "ended before the answer had"),
        (b"data: {}\n\n", BadAnswer, "expected an event with text_output"),
    ],
)
def test_nothing_is_sent_again_behind_the_first_piece(
    connect: Connect, end: bytes | Exception, kind: type[Exception], message: str
) -> None:
    server = Writer(chunks := Chunks(event("One"), end))
    stream = written(connect(server, retry=Retry(lost=True)), "writer", "a")
    assert next(stream) == "One"
    with pytest.raises(kind, match=message):
        next(stream)
    assert (len(server.asked), chunks.closed > 0) == (1, True)


def test_the_deadline_bounds_the_whole_text(connect: Connect) -> None:
    def later() -> None:
        client.now += 6

    client = connect(Writer(Chunks(event("One"), later, event(" two"), later, event(" three"), LAST)))
    stream = written(client, "writer", "a", deadline_s=10)
    assert [next(stream), next(stream)] == ["One", " two"]
    with pytest.raises(TimedOut):
        next(stream)


def test_a_stream_that_is_left_is_closed(connect: Connect) -> None:
    client = connect(Writer(chunks := Chunks(event("One"), LAST)))
    stream = written(client, "writer", "a")
    assert next(stream) == "One"
    stream.close()  # type: ignore[attr-defined]
    assert chunks.closed
