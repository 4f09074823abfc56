"""uvicorn's HTTP protocol as this server changes it, on a transport that only remembers what was written."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from connections import Connection, parsed

from app.http.connection.uvicorn_fixes import PatchedProtocol

ROOT = Path(__file__).parents[2]
REQUEST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok"


async def answer(send: Any, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2"), *headers]})
    await send({"type": "http.response.body", "body": b"ok"})


async def ok(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that answers "ok" when the body has come."""
    while (await receive()).get("more_body", False):
        pass
    await answer(send)


class Seen:
    """The same; `requests`: path, headers and body of each that it has answered."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[tuple[bytes, bytes]], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.requests.append((scope["path"], scope["headers"], body))
        await answer(send)


async def in_parts(scope: Any, receive: Any, send: Any) -> None:
    """The body comes back in two parts, and an empty one ends them."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def sent(app: Any, *parts: bytes) -> Connection:
    """A connection on which these have come, and have been answered."""
    connection = Connection(app)
    for part in parts:
        connection.send(part)
    await connection.done()
    return connection


async def test_nothing_is_written_of_an_empty_body() -> None:
    """asyncio's loop, from Python 3.12 on, would try to send empty bytes for ever."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    connection = Connection(app)
    lines: list[list[bytes]] = []
    connection.transport.writelines = lambda given: lines.append(list(given))  # type: ignore[method-assign]
    connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await connection.done()
    assert b"" not in sum(lines, connection.transport.writes)
    assert b"".join(sum(lines, connection.transport.writes)) == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


async def test_answers_without_a_body_and_in_parts() -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    connection = await sent(ok, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert connection.transport.writes == [head + b"content-length: 2\r\n\r\n"]
    connection = await sent(in_parts, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    head += b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert connection.transport.writes == [head + b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"]
    assert connection.transport.closing


@pytest.mark.parametrize("line", [b"", b"Connection: keep-alive\r\n"])
async def test_a_client_of_http_1_0_gets_no_chunks(line: bytes) -> None:
    """The end of the connection is the end of an answer without a length."""
    for app, length, body in ((in_parts, b"", b"onetwo"), (ok, b"content-length: 2\r\n", b"ok")):
        connection = await sent(app, b"GET / HTTP/1.0\r\n%s\r\n" % line)
        assert connection.transport.written == b"HTTP/1.1 200 OK\r\n%sconnection: close\r\n\r\n%s" % (length, body)
        assert connection.transport.closing


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505), (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400), (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
    ],
)  # fmt: skip
async def test_other_versions_methods_and_targets(head: bytes, status: int) -> None:
    connection = await sent(ok, head)
    assert connection.transport.written.startswith(b"HTTP/1.1 %d " % status)
    assert status == 200 or list(json.loads(connection.transport.written.partition(b"\r\n\r\n")[2])) == ["error"]


CHUNKED = b"2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize("line", [b"GET /\r\n", b"GET /\n"])
async def test_a_request_without_a_version_is_refused(line: bytes) -> None:
    """At once: HTTP/0.9 has one line, and nothing need follow."""
    connection = await sent(ok, line)
    assert connection.transport.written.startswith(b"HTTP/1.1 400 ")
    assert connection.transport.ended


@pytest.mark.parametrize(
    ("head", "message"),
    [
        *((head, "the request's first line: expected a path and HTTP/1.1 or HTTP/1.0")
          for head in (b"GET /\r\n\r\n", b"POST /a\r\nContent-Length: 2\r\n\r\nok")),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", "the request is not valid HTTP/1.1: Invalid char in url path"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
         "the request is not valid HTTP/1.1: Transfer-Encoding can't be present with Content-Length"),
        (b"GET / HTTP/1.1\r\n\r\n", "Host: expected one, as HTTP/1.1 has it"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "Host: expected one, as HTTP/1.1 has it"),
        *((b"POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n%s" % (lines, CHUNKED),
           "Transfer-Encoding: expected chunked and nothing else")
          for lines in (b"Transfer-Encoding: gzip, chunked",
                        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("behind", [b"", REQUEST % 1], ids=["alone", "one behind it"])
async def test_heads_that_are_refused(head: bytes, message: str, behind: bytes) -> None:
    """What follows them is dropped: the next request may begin anywhere, and to close would reset the connection."""
    seen = Seen()
    connection = await sent(seen, head + behind)
    status, headers, body = parsed(connection.transport.written)
    assert (status, headers["content-length"]) == (400, str(len(body)))
    assert json.loads(body) == {"error": message}
    assert (connection.transport.closing, connection.transport.ended) == (False, True)
    connection.send(REQUEST % 2)
    assert seen.requests == []


GET = b"GET / HTTP/1.1\r\nHost: a\r\nX: "
LONG = GET + b"a" * 99_970 + b"\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        *((LONG[:cut], LONG[cut:]) for cut in (10, 60_000, 99_990, 100_001)),
        (GET, *[b"a" * 8192] * 9),
        (b"GET /", *[b"a" * 8192] * 9),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: ", *[b"a" * 8192] * 9),
    ],
    ids=["cut early", "cut", "cut late", "whole", "a header", "a target", "a trailer"],
)
async def test_a_head_is_refused_when_it_is_too_long(parts: tuple[bytes, ...]) -> None:
    connection = Connection(ok)
    for part in parts:
        connection.send(part)
    await asyncio.sleep(0)
    written = connection.transport.written
    assert written.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    error = "the request's head: expected at most 65536 bytes"
    assert json.loads(written.partition(b"\r\n\r\n")[2]) == {"error": error}
    assert connection.transport.ended
    connection.send(b"a" * (8 << 10))
    assert connection.transport.written == written
    connection.hang_up()
    await connection.done()


@pytest.mark.parametrize(
    "wrong",
    [
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"no http\r\n\r\n"],
        [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nno chunk\r\n"],
        [GET, *[b"a" * 8192] * 9],
    ],
    ids=["head", "line", "body", "endless head"],
)
@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("together", [False, True])
async def test_a_malformed_request_takes_no_answer_of_those_before_it(
    wrong: list[bytes], before: int, together: bool
) -> None:
    """A client would take a 400 that comes first for the answer to its first request, and lose those that a reset
    overtakes: whoever answers while it waits for the client to leave reads on."""

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        watching = asyncio.create_task(receive())
        await asyncio.sleep(0)
        await answer(send)
        await watching

    earlier = REQUEST % 1 * before
    parts = [earlier + wrong[0], *wrong[1:]] if together else [earlier, *wrong]
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"
    answers = [head + b"\r\nok", head + b"connection: close\r\n\r\nok"]
    for app in (ok, watched):
        connection = await sent(app, *parts, REQUEST % 2)
        assert connection.transport.writes == answers[2 - before :]
        assert (connection.transport.closing, connection.transport.ended) == (False, True)
        assert connection.transport.reading()


async def test_trailers_are_no_headers() -> None:
    """A proxy that takes a header away from a request may let a trailer through (RFC 9110, 6.5.1)."""
    seen = Seen()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    await sent(seen, head + b"2\r\nok\r\n0\r\nX-Class: best_effort\r\nHost: b\r\n\r\n")
    assert seen.requests == [("/", [(b"host", b"a"), (b"transfer-encoding", b"chunked")], b"ok")]


@pytest.mark.parametrize("cut", [1, 30, 60, 70])
async def test_white_space_around_a_value_is_no_part_of_it(cut: int) -> None:
    """A key or a class with a space behind it is that key or class (RFC 9110, 5.5)."""
    seen = Seen()
    head = b"POST / HTTP/1.1\r\nHost: a \r\nX-Empty: \t \r\nX-Key:\t a key \t\r\nTransfer-Encoding: chunked \r\n\r\n"
    connection = await sent(seen, head[:cut], head[cut:] + CHUNKED)
    assert parsed(connection.transport.written)[0] == 200
    expected = [(b"host", b"a"), (b"x-empty", b""), (b"x-key", b"a key"), (b"transfer-encoding", b"chunked")]
    assert seen.requests == [("/", expected, b"ok")]


@pytest.mark.parametrize(("version", "continues"), [(b"1.1", True), (b"1.0", False)])
@pytest.mark.parametrize("expectation", [b"100-continue", b"100-Continue "])
async def test_a_body_that_waits_for_the_servers_word(version: bytes, continues: bool, expectation: bytes) -> None:
    """A client of HTTP/1.0 would take 100 Continue for its answer (RFC 9110, 10.1.1)."""
    connection = Connection(ok)
    head = b"POST / HTTP/%s\r\nHost: a\r\nContent-Length: 2\r\nExpect: %s\r\n\r\n"
    connection.send(head % (version, expectation))
    await asyncio.sleep(0)
    assert connection.transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"] * continues
    connection.send(b"ok")
    await connection.done()
    assert parsed(connection.transport.writes[-1])[0] == 200


async def test_an_http_1_0_request_needs_no_host_and_heads_of_one_read_are_not_added_up() -> None:
    line = GET + b"a" * 40_000 + b"\r\n\r\n"
    connection = await sent(ok, line * 3 + b"GET / HTTP/1.0\r\n\r\n")
    assert connection.transport.written.count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize("answered", [0, 1])
async def test_a_client_that_pipelines_and_hangs_up(answered: int, caplog: pytest.LogCaptureFixture) -> None:
    """The request at work hears of it, those behind it never start, and nothing is said of it in the log."""
    begun: list[str] = []
    heard: list[str] = []
    waiting = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await receive()
        if len(begun) > answered:
            waiting.set()
            heard.append((await receive())["type"])  # as a watch over the client does
        await answer(send)

    caplog.set_level("WARNING")
    connection = Connection(app)
    connection.send(b"".join(REQUEST % n for n in range(50)))
    async with asyncio.timeout(10):
        await waiting.wait()
    connection.hang_up()
    await connection.done()
    assert begun == [f"/{n}" for n in range(answered + 1)]
    assert heard == ["http.disconnect"]
    assert connection.transport.written.count(b"200 OK") == answered
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("came", "sends_on"), [(REQUEST % 1, False), ((REQUEST % 1) * 3, True), ((REQUEST % 1)[:-1], True)]
)
async def test_the_last_answer_reaches_a_client_that_sends_on(came: bytes, sends_on: bool) -> None:
    """To close with something unread would reset the connection. What is behind the last answer is dropped."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, (b"connection", b"close"))  # as while the server is shutting down

    connection = await sent(app, came)
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    assert connection.transport.writes == [head + b"ok"]
    assert (connection.transport.closing, connection.transport.ended) == (not sends_on, sends_on)
    assert connection.transport.reading()
    if sends_on:
        connection.send(REQUEST % 2)
        await connection.done()
        assert len(connection.transport.writes) == 1


async def test_connect_is_answered_as_any_other_request(caplog: pytest.LogCaptureFixture) -> None:
    """And has no line of the log: any client may send any number of them."""
    connection = await sent(ok, b"CONNECT http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert connection.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"] * 2
    assert caplog.records == []


OFFERS = {
    "h2c": [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"],
    "close too": [b"Connection: close, Upgrade", b"Upgrade: h2c"],
    "websocket": [b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13"],
}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("cut", [0, 10, 60, -7])
async def test_an_offer_to_upgrade_is_declined(offer: str, cut: int) -> None:
    """The request is answered as any other, with what follows it on the connection."""
    seen = Seen()
    lines = b"\r\n".join(
        [b"POST /a HTTP/1.1", b"Host: a", b"X-A: b", *OFFERS[offer], b"Content-Length: 5", b"", b"hello"]
    )
    connection = await sent(seen, *filter(None, (lines[:cut], lines[cut:], REQUEST % 2)))
    closes = offer == "close too"
    assert [body for _, _, body in seen.requests] == [b"hello"] if closes else [b"hello", b"ok"]
    headers = {name for name, _ in seen.requests[0][1]} - {b"sec-websocket-version"}
    assert headers == {b"host", b"x-a", b"content-length", *([b"connection"] if closes else [])}
    assert connection.transport.written.count(b"200 OK") == len(seen.requests)
    assert connection.transport.closing == closes


async def test_a_client_that_pipelines_is_not_read_far_ahead() -> None:
    """Reading goes on when the last of the requests that have been read has begun."""
    turn = asyncio.Semaphore(0)
    begun: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await turn.acquire()
        await ok(scope, receive, send)

    connection = Connection(app)
    reading = connection.transport.reading
    connection.send(b"".join(REQUEST % n for n in range(4)))
    states = []
    for _ in range(4):
        await asyncio.sleep(0)
        states.append((len(begun), reading()))
        turn.release()
        for _ in range(3):
            await asyncio.sleep(0)
    assert states == [(1, False), (2, False), (3, False), (4, True)]
    await connection.done()


async def test_malformed_requests_are_a_line_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_reported_at", -1.0), ("malformed", 0), ("_reported", 0)):
        monkeypatch.setattr(PatchedProtocol, name, value)
    for now in [100.0] * 50 + [101.0] * 50:
        connection = Connection(ok)
        with monkeypatch.context() as patch:
            patch.setattr(connection.protocol.loop, "time", partial(float, now))
            connection.send(b"nonsense\r\n\r\n")
    told = [record.getMessage() for record in caplog.records if "malformed" in record.getMessage()]
    assert told == [f"malformed HTTP requests received: {count}, the last from 127.0.0.1" for count in (1, 50)]
    assert PatchedProtocol.malformed == 100


def test_the_tested_release_of_uvicorn_is_the_only_one_allowed() -> None:
    """Its internals change without notice: from one minor release below to one above nothing else is installed."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (wanted,) = [line for line in dependencies if line.startswith("uvicorn")]
    (tested,) = re.findall(r"^uvicorn==(\d+)\.(\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    major, minor = map(int, tested)
    assert wanted.split("#")[0].strip() == f"uvicorn>={major}.{minor},<{major}.{minor + 1}"
    assert uvicorn.__version__.startswith(f"{major}.{minor}.")
