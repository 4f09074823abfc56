"""The fast path through the HTTP protocol: what it takes, what it leaves to uvicorn, and how its answers go out."""

from __future__ import annotations

import gzip
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from connections import Clock, Connection, parsed

from app.http.body import RequestHeaders
from app.http.connection import uvicorn_fixes
from app.http.connection.connection import LONG_BODY, Carrier, Exchange

HEAD = b"content-length: 2\r\n"


class Taken(Exchange):
    """An exchange that the test answers."""

    most = LONG_BODY  # bytes that it takes of a body

    def __init__(self, connection: Carrier, body: bytes | None, full: bool) -> None:
        self.connection = connection
        self.body = None if full else body
        self.body_complete = body is not None
        self.full = full
        self.gone = self.timed_out = False
        self.held = 0

    def begin(self) -> None:
        if self.full:
            self.ok()

    def hold(self, size: int) -> None:
        self.held += size
        if self.held > self.most:
            self.connection.send_answer(self, 429, HEAD, b"no")

    def received(self, body: bytes) -> None:
        self.body = body

    def on_body_timeout(self) -> None:
        self.timed_out = self.closes = True
        self.connection.send_answer(self, 408, HEAD, b"no")

    def on_disconnect(self) -> None:
        self.gone = True

    def ok(self) -> None:
        self.connection.send_answer(self, 200, HEAD, b"ok")


async def long_way(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application behind: says how many bytes came."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    text = b"%d %s" % (size, scope["path"].encode())
    head = [(b"content-length", b"%d" % len(text)), (b"x-way", b"long")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": text})


def post(path: bytes, body: bytes = b"hi", *lines: bytes) -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"Host: a", b"Content-Length: %d" % len(body), *lines))
    return b"POST %s HTTP/1.1\r\n%s\r\n%s" % (path, head, body)


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LAST_ANSWER = ANSWER.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


HEAD_OF_4 = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"


class Wire(Connection):
    """A connection, and what it took the fast path: `taken`, with `heads`. Time passes when the test says so.

    `full`: a request is answered at once.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.taken: list[Taken] = []
        self.heads: list[tuple[bytes, RequestHeaders, int]] = []
        self.full = self.drops_body = False
        super().__init__(long_way, self._take, {"health": SimpleNamespace(closing=False)}, self.clock)

    def _take(
        self, connection: Carrier, url: bytes, headers: RequestHeaders, length: int, body: bytes | None
    ) -> Exchange | None:
        self.heads.append((url, headers, length))
        self.taken.append(Taken(connection, body, self.full))
        self.taken[-1].drops_body = self.drops_body
        return self.taken[-1]

    def ok(self) -> None:
        """Answer the last request that came."""
        self.taken[-1].ok()

    def know(self, request: bytes) -> None:
        """See a head, and forget that it was there."""
        self.send(request)
        self.taken.pop().ok()
        self.transport.writes.clear()

    def begin(self, known: bool) -> None:
        """The head of a request comes, whose body of 4 bytes does not. `known`: for a 2nd time."""
        if known:
            self.know(HEAD_OF_4 + b"abcd")
        self.send(HEAD_OF_4)


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.mark.parametrize("before", [b"", post(b"/a")])
async def test_the_last_request_of_a_connection(wire: Wire, before: bytes) -> None:
    """A client that comes anew for each request costs no task either."""
    if before:
        wire.know(before)
    wire.send(post(b"/a", b"hi", b"Connection: close") + post(b"/b"))
    assert not wire.transport.closing
    wire.ok()
    assert wire.transport.writes == [LAST_ANSWER]
    assert (wire.state.tasks, wire.transport.closing) == (set(), True)
    assert {url for url, _, _ in wire.heads} == {b"/a"}


async def test_answers_have_the_servers_own_header_lines(wire: Wire) -> None:
    """Whose date is a new one every second; also long ones, which are not copied."""
    for date, body in ((b"now", b"a"), (b"then", bytes(1 << 20))):
        wire.state.default_headers = [(b"date", date), (b"server", b"a")]
        wire.send(post(b"/a"))
        wire.protocol.send_answer(wire.taken[-1], 200, HEAD, body)
        head = b"HTTP/1.1 200 OK\r\ndate: %s\r\nserver: a\r\n%s\r\n" % (date, HEAD)
        assert wire.transport.written.endswith(head + body)


async def test_a_request_in_any_pieces(wire: Wire) -> None:
    request = post(b"/a", b"body")
    for cut in range(1, len(request)):
        wire.send(request[:cut])
        wire.send(request[cut:])
        wire.ok()
    for byte in request:
        wire.send(bytes([byte]))
    assert [taken.body for taken in wire.taken] == [b"body"] * len(request)
    assert wire.transport.written == ANSWER * (len(request) - 1)


@pytest.mark.parametrize("known", [False, True])
async def test_bytes_of_a_body_count_as_they_arrive_and_may_be_too_many(wire: Wire, known: bool) -> None:
    wire.begin(known)
    (taken,) = wire.taken
    taken.most = 2
    assert taken.held == 0
    wire.send(b"ab")
    assert (taken.held, wire.transport.written) == (2, b"")
    wire.send(b"c")
    refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\nno"
    assert wire.transport.written == refusal
    wire.send(b"d" + post(b"/b"))  # the rest of the body is dropped
    assert (taken.body, taken.held, wire.heads[-1][0]) == (None, 3, b"/b")
    wire.ok()
    assert wire.transport.written == refusal + ANSWER


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        post(b"/a", b"hi", b"Expect: 100-continue"),
        post(b"/a", gzip.compress(b"hi"), b"Content-Encoding: gzip"),
        post(b"/a", b"hi", b"Upgrade: h2c"),
        post(b"/a", b"x" * (LONG_BODY + 1)),
    ],
    ids=["get", "chunked", "1.0 kept alive", "expect", "gzip", "upgrade", "large"],
)
async def test_what_goes_uvicorns_way(wire: Wire, request_bytes: bytes) -> None:
    wire.send(request_bytes)
    await wire.done()
    assert wire.taken == []
    written = wire.transport.written.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert parsed(written)[1]["x-way"] == "long"


@pytest.mark.parametrize("known", [False, True])
async def test_requests_behind_one_another_are_answered_in_order(wire: Wire, known: bool) -> None:
    if known:
        wire.know(post(b"/1"))
    wire.send(post(b"/1") + post(b"/2") + post(b"/3", b"abc"))
    assert len(wire.taken) == 1
    assert wire.state.tasks == set()
    wire.taken[0].ok()
    await wire.done()
    first, second, third = wire.transport.writes
    assert (first, parsed(second)[2], parsed(third)[2]) == (ANSWER, b"2 /2", b"3 /3")
    wire.send(post(b"/4"))
    wire.taken[1].ok()
    assert wire.transport.writes[-1] == ANSWER


@pytest.mark.parametrize("known", [False, True])
async def test_no_request_is_taken_while_an_answer_is_not_read(wire: Wire, known: bool) -> None:
    if known:
        wire.know(post(b"/a"))
    wire.send(post(b"/a"))
    wire.ok()
    wire.protocol.pause_writing()
    wire.send(post(b"/a"))
    assert (len(wire.taken), len(wire.transport.writes)) == (1, 1)
    wire.protocol.resume_writing()
    await wire.done()
    assert (len(wire.taken), len(wire.transport.writes)) == (1, 2)  # by ASGI


@pytest.mark.parametrize("sent", [HEAD_OF_4 + b"ab", post(b"/a") + post(b"/b")])
async def test_a_client_that_leaves(wire: Wire, sent: bytes) -> None:
    wire.send(sent)
    wire.hang_up()
    (taken,) = wire.taken
    assert (taken.gone, taken.timed_out) == (True, False)
    taken.ok()  # too late: nothing is written to a closed connection
    assert wire.transport.writes == []
    assert wire.state.connections == set()


@pytest.mark.parametrize("known", [False, True])
async def test_a_body_that_does_not_come_in_time(wire: Wire, known: bool) -> None:
    wire.begin(known)
    wire.clock.pass_s(29)
    wire.send(b"ab")  # a client that sends now and then gets no more time
    wire.clock.pass_s(0.9)
    assert wire.transport.writes == []
    wire.clock.pass_s(0.2)
    status, headers, _ = parsed(wire.transport.written)
    assert (status, headers["connection"], wire.taken[0].timed_out) == (408, "close", True)
    assert wire.transport.ended  # the client hears that nothing more comes,
    assert not wire.transport.closing  # and what it still sends is read, or it would lose the answer
    wire.send(b"cd" + post(b"/b") + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (len(wire.taken), wire.taken[0].body, len(wire.transport.writes)) == (1, None, 1)
    assert wire.state.tasks == set()
    wire.clock.pass_s(5)
    assert wire.transport.closing


@pytest.mark.parametrize("known", [False, True])
async def test_a_body_that_comes_while_the_answer_that_it_is_late_waits_for_its_turn(
    wire: Wire, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Taken, "on_body_timeout", lambda taken: setattr(taken, "drops_body", True))
    wire.begin(known)
    wire.clock.pass_s(31)
    wire.send(b"ab")
    wire.send(b"cd")
    assert wire.transport.writes == []
    wire.taken[0].ok()
    assert wire.transport.writes == [ANSWER]


async def test_a_malformed_request_behind_one_that_has_no_answer_yet(wire: Wire) -> None:
    wire.send(post(b"/a") + b"no http\r\n\r\n")
    wire.send(post(b"/a"))
    assert wire.transport.writes == []
    wire.taken[0].ok()
    assert wire.transport.writes == [LAST_ANSWER]
    assert (len(wire.taken), wire.transport.closing or wire.transport.ended) == (1, True)


@pytest.mark.parametrize(
    "behind",
    [
        b"\0 nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /\r\n", post(b"/a"),
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n\0 nonsense\r\n\r\n",
    ],
    ids=["nonsense", "no host", "no version", "a request", "a long head", "an upgrade, then nonsense"],
)  # fmt: skip
async def test_what_came_with_a_request_whose_answer_is_the_last_has_none(
    wire: Wire, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered before its body has come, as where a model does not serve, and nothing more can be written."""
    wire.full = True
    monkeypatch.setattr(Taken, "closes", True)
    wire.send(post(b"/a") + behind)
    assert (wire.transport.writes, wire.transport.ended) == ([LAST_ANSWER], True)
    assert len(wire.taken) == 1


@pytest.mark.parametrize(("sent", "later"), [(b"", b""), (b"P", b"O"), (b"GET /a HTTP/1.1\r\nHost: a\r\n", b"X")])
@pytest.mark.parametrize("before", [False, True])
async def test_a_head_that_does_not_come_to_its_end(wire: Wire, sent: bytes, later: bytes, before: bool) -> None:
    """However it drips. The time counts from the accept, and from the last answer."""
    if before:
        wire.clock.pass_s(4)
        wire.send(post(b"/a"))
        wire.ok()
        wire.transport.writes.clear()
    if sent:
        wire.send(sent)
    wire.clock.pass_s(4.9)
    assert not wire.transport.closing
    if later:
        wire.send(later)
    wire.clock.pass_s(0.2)
    assert wire.transport.closing
    assert wire.transport.written[:12] == (b"HTTP/1.1 408" if sent else b"")


async def test_a_refusal_that_waits_drops_the_body(wire: Wire) -> None:
    """And the connection goes on as before when it has left."""
    wire.know(HEAD_OF_4 + b"abcd")
    for head in (HEAD_OF_4, post(b"/b", b"abcd")[:-4]):
        wire.drops_body = True
        wire.send(head + b"ab")
        taken = wire.taken[-1]
        wire.send(b"cd")
        assert (taken.body, wire.transport.writes) == (b"", [])
        wire.drops_body = False
        wire.send(post(b"/c"))
        taken.ok()
        await wire.done()
        assert wire.transport.writes[0] == ANSWER
        assert parsed(wire.transport.writes[1])[2] == b"2 /c"
        wire.transport.writes.clear()


async def test_idle_connections_close(wire: Wire) -> None:
    """After the last answer, not the first; one timer serves all answers."""
    for _ in range(3):
        wire.send(post(b"/a"))
        wire.ok()
        wire.clock.pass_s(4)
        assert (wire.transport.closing, len(wire.clock.timers)) == (False, 1)
    wire.send(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
    await wire.done()
    wire.clock.pass_s(4.9)
    assert not wire.transport.closing
    wire.clock.pass_s(0.2)
    assert wire.transport.closing


async def test_a_client_that_does_not_read_its_answers_is_cut(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, transport = wire.protocol, wire.transport
    protocol.pause_writing()
    transport.unsent = 100_000
    wire.send(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
    for left in (90_000, 80_000):  # it reads slowly
        wire.clock.pass_s(5)
        transport.unsent = left
    for _ in range(2):  # and then so slowly that it is as far behind as before
        protocol.resume_writing()
        protocol.pause_writing()
        wire.clock.pass_s(5)
    for left in (2_000_000, 1_998_000):  # or reads what the system holds, which takes no more for now
        monkeypatch.setattr(uvicorn_fixes, "unacknowledged", lambda transport, left=left: left)
        wire.clock.pass_s(5)
    assert not transport.closing
    wire.clock.pass_s(5)
    assert (transport.closing, transport.lost) == (True, True)
    wire.hang_up()
    await wire.done()
    assert wire.clock.timers == []


async def test_shutdown_waits_for_an_answer_and_closes_with_it(wire: Wire) -> None:
    wire.send(post(b"/a"))
    wire.protocol.shutdown()
    assert not wire.transport.closing
    wire.taken[0].ok()
    assert wire.transport.writes == [LAST_ANSWER]
    assert wire.transport.closing


# a head that has been seen on the connection is not parsed again


async def test_a_head_is_parsed_once(wire: Wire) -> None:
    parser = wire.protocol.parser = Mock(wraps=wire.protocol.parser)
    for number in range(5):
        wire.send(post(b"/a", b"body%d" % number, b"X-A: b"))
        assert wire.taken[-1].body == b"body%d" % number
        wire.ok()
    assert (parser.feed_data.call_count, len({id(headers) for _, headers, _ in wire.heads})) == (1, 1)
    for request in (post(b"/a", b"longer!"), post(b"/a", b"body5", b"X-A: c"), b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"):
        wire.send(request)
        if request.startswith(b"POST"):
            wire.ok()
        await wire.done()
    assert parser.feed_data.call_count == 4
    assert wire.heads[-1][1][b"x-a"] == b"c"
    assert wire.transport.written.count(b"HTTP/1.1 200 OK") == 8


@pytest.mark.parametrize("first", [b"\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", post(b"/b", b"POST ")])
async def test_a_head_behind_something_else_in_one_read(wire: Wire, first: bytes) -> None:
    """What is remembered is that head alone, or nothing."""
    wire.full = True
    wire.send(first + post(b"/a", b"one"))
    await wire.done()
    for body in (b"two", b"six"):
        wire.send(post(b"/a", body))
        await wire.done()
    assert [taken.body for taken in wire.taken[-2:]] == [None, None]
    assert [url for url, _, _ in wire.heads[-2:]] == [b"/a", b"/a"]
    wire.send(first + post(b"/a", b"one"))
    await wire.done()
    assert wire.transport.written.count(b"HTTP/1.1 200 OK") == 4 + 2 * (first != b"\r\n\r\n")


async def test_many_refused_in_one_read(wire: Wire) -> None:
    wire.full = True
    wire.send(post(b"/a"))
    wire.send(post(b"/a") * 5000)
    assert wire.transport.writes == [ANSWER] * 5001
    wire.send(post(b"/a") * 10 + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + post(b"/a"))
    await wire.done()
    assert [b"x-way" in answer for answer in wire.transport.writes[-12:]] == [False] * 10 + [True] * 2
