"""The fast path through the HTTP protocol: what it takes, what it leaves to uvicorn, and how its answers go out."""

from __future__ import annotations

import gzip
from types import SimpleNamespace
from typing import Any

import pytest
from connections import Clock, Connection, parsed

from app.http.body import RequestHeaders
from app.http.connection import uvicorn_fixes
from app.http.connection.connection import LONG_BODY, Carrier, Exchange

HEAD = b"content-length: 2\r\n"


class Taken(Exchange):
    """An exchange that the test answers."""

    def __init__(self, connection: Carrier, body: bytes | None, full: bool) -> None:
        self.connection = connection
        self.body = None if full else body
        self.body_complete = body is not None
        self.full = full
        self.gone = self.timed_out = False
        self.held, self.most = 0, LONG_BODY

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


class Takes:
    """A handler that takes all it is offered. `full`: it answers at once."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.heads: list[tuple[bytes, RequestHeaders, int]] = []
        self.full = self.drops_body = False

    def ok(self) -> None:
        """Answer the last request that came."""
        self.taken[-1].ok()

    def take(
        self, connection: Carrier, url: bytes, headers: RequestHeaders, length: int, body: bytes | None
    ) -> Exchange | None:
        self.heads.append((url, headers, length))
        self.taken.append(Taken(connection, body, self.full))
        self.taken[-1].drops_body = self.drops_body
        return self.taken[-1]


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


def get_known(connection: Connection, handler: Takes, request: bytes) -> None:
    """Let the connection see a head, and forget that it was there."""
    connection.send(request)
    handler.taken.pop().ok()
    connection.transport.writes.clear()


async def begun(handler: Takes, known: bool) -> tuple[Clock, Connection]:
    """A connection on which the head of a request has come, whose body of 4 bytes has not. `known`: for a 2nd time."""
    clock = Clock()
    connection = await connected(handler, clock=clock)
    if known:
        get_known(connection, handler, HEAD_OF_4 + b"abcd")
    connection.send(HEAD_OF_4)
    return clock, connection


@pytest.fixture
def handler() -> Takes:
    return Takes()


async def connected(handler: Takes, *sent: bytes, clock: Clock | None = None) -> Connection:
    connection = Connection(long_way, handler.take, {"health": SimpleNamespace(closing=False)}, clock)
    for data in sent:
        connection.send(data)
    return connection


async def test_the_last_request_of_a_connection(handler: Takes) -> None:
    """A client that comes anew for each request costs no task either."""
    for before in (False, True):
        connection = await connected(handler)
        if before:
            connection.send(post(b"/a"))
            handler.ok()
        connection.send(post(b"/a", b"hi", b"Connection: close") + post(b"/b"))
        assert not connection.transport.closing
        handler.ok()
        assert connection.transport.writes[-1] == LAST_ANSWER
        assert (connection.state.tasks, connection.transport.closing) == (set(), True)
    assert {url for url, _, _ in handler.heads} == {b"/a"}


async def test_a_request_in_any_pieces(handler: Takes) -> None:
    request = post(b"/a", b"body")
    connection = await connected(handler)
    for cut in range(1, len(request)):
        connection.send(request[:cut])
        connection.send(request[cut:])
        handler.ok()
    for byte in request:
        connection.send(bytes([byte]))
    assert [taken.body for taken in handler.taken] == [b"body"] * len(request)
    assert connection.transport.written == ANSWER * (len(request) - 1)


@pytest.mark.parametrize("known", [False, True])
async def test_bytes_of_a_body_count_as_they_arrive_and_may_be_too_many(handler: Takes, known: bool) -> None:
    _, connection = await begun(handler, known)
    (taken,) = handler.taken
    taken.most = 2
    assert taken.held == 0
    connection.send(b"ab")
    assert (taken.held, connection.transport.written) == (2, b"")
    connection.send(b"c")
    refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\nno"
    assert connection.transport.written == refusal
    connection.send(b"d" + post(b"/b"))  # the rest of the body is dropped
    assert (taken.body, taken.held, handler.heads[-1][0]) == (None, 3, b"/b")
    handler.ok()
    assert connection.transport.written == refusal + ANSWER


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
async def test_what_goes_uvicorns_way(handler: Takes, request_bytes: bytes) -> None:
    connection = await connected(handler, request_bytes)
    await connection.done()
    assert handler.taken == []
    written = connection.transport.written.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert parsed(written)[1]["x-way"] == "long"


@pytest.mark.parametrize("known", [False, True])
async def test_requests_behind_one_another_are_answered_in_order(handler: Takes, known: bool) -> None:
    connection = await connected(handler)
    if known:
        get_known(connection, handler, post(b"/1"))
    connection.send(post(b"/1") + post(b"/2") + post(b"/3", b"abc"))
    assert len(handler.taken) == 1
    assert connection.state.tasks == set()
    handler.taken[0].ok()
    await connection.done()
    first, second, third = connection.transport.writes
    assert (first, parsed(second)[2], parsed(third)[2]) == (ANSWER, b"2 /2", b"3 /3")
    connection.send(post(b"/4"))
    handler.taken[1].ok()
    assert connection.transport.writes[-1] == ANSWER


async def test_a_slow_reader_has_one_answer_held(handler: Takes) -> None:
    connection = await connected(handler, post(b"/a") + post(b"/b"))
    connection.protocol.pause_writing()
    handler.taken[0].closes = False
    handler.taken[0].ok()
    assert connection.transport.writes == []
    handler.taken[0].closes = True  # the server has been told to stop meanwhile
    connection.protocol.resume_writing()
    assert connection.transport.writes == [LAST_ANSWER]
    assert connection.transport.ended  # a second request has been read, and more may be on its way
    assert len(handler.taken) == 1


@pytest.mark.parametrize("sent", [HEAD_OF_4 + b"ab", post(b"/a") + post(b"/b")])
async def test_a_client_that_leaves(handler: Takes, sent: bytes) -> None:
    connection = await connected(handler, sent)
    connection.hang_up()
    (taken,) = handler.taken
    assert (taken.gone, taken.timed_out) == (True, False)
    taken.ok()  # too late: nothing is written to a closed connection
    assert connection.transport.writes == []
    assert connection.state.connections == set()


@pytest.mark.parametrize("known", [False, True])
async def test_a_body_that_does_not_come_in_time(handler: Takes, known: bool) -> None:
    clock, connection = await begun(handler, known)
    clock.pass_s(29)
    connection.send(b"ab")  # a client that sends now and then gets no more time
    clock.pass_s(0.9)
    assert connection.transport.writes == []
    clock.pass_s(0.2)
    status, headers, _ = parsed(connection.transport.written)
    assert (status, headers["connection"], handler.taken[0].timed_out) == (408, "close", True)
    assert connection.transport.ended  # the client hears that nothing more comes,
    assert not connection.transport.closing  # and what it still sends is read, or it would lose the answer
    connection.send(b"cd" + post(b"/b") + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (len(handler.taken), handler.taken[0].body, len(connection.transport.writes)) == (1, None, 1)
    assert connection.state.tasks == set()
    clock.pass_s(5)
    assert connection.transport.closing


@pytest.mark.parametrize("known", [False, True])
async def test_a_body_that_comes_while_the_answer_that_it_is_late_waits_for_its_turn(
    handler: Takes, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Taken, "on_body_timeout", lambda taken: setattr(taken, "drops_body", True))
    clock, connection = await begun(handler, known)
    clock.pass_s(31)
    connection.send(b"ab")
    connection.send(b"cd")
    assert connection.transport.writes == []
    handler.taken[0].ok()
    assert connection.transport.writes == [ANSWER]


async def test_a_malformed_request_behind_one_that_has_no_answer_yet(handler: Takes) -> None:
    connection = await connected(handler, post(b"/a") + b"no http\r\n\r\n")
    connection.send(post(b"/a"))
    assert connection.transport.writes == []
    handler.taken[0].ok()
    assert connection.transport.writes == [LAST_ANSWER]
    assert (len(handler.taken), connection.transport.closing or connection.transport.ended) == (1, True)


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
    handler: Takes, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered before its body has come, as where a model does not serve, and nothing more can be written."""
    handler.full = True
    monkeypatch.setattr(Taken, "closes", True)
    connection = await connected(handler, post(b"/a") + behind)
    assert (connection.transport.writes, connection.transport.ended) == ([LAST_ANSWER], True)
    assert len(handler.taken) == 1


@pytest.mark.parametrize(("sent", "later"), [(b"", b""), (b"P", b"O"), (b"GET /a HTTP/1.1\r\nHost: a\r\n", b"X")])
@pytest.mark.parametrize("before", [False, True])
async def test_a_head_that_does_not_come_to_its_end(handler: Takes, sent: bytes, later: bytes, before: bool) -> None:
    """However it drips. The time counts from the accept, and from the last answer."""
    clock = Clock()
    connection = await connected(handler, clock=clock)
    if before:
        clock.pass_s(4)
        connection.send(post(b"/a"))
        handler.ok()
        connection.transport.writes.clear()
    if sent:
        connection.send(sent)
    clock.pass_s(4.9)
    assert not connection.transport.closing
    if later:
        connection.send(later)
    clock.pass_s(0.2)
    assert connection.transport.closing
    assert connection.transport.written[:12] == (b"HTTP/1.1 408" if sent else b"")


async def test_a_refusal_that_waits_drops_the_body(handler: Takes) -> None:
    """And the connection goes on as before when it has left."""
    connection = await connected(handler)
    get_known(connection, handler, HEAD_OF_4 + b"abcd")
    for head in (HEAD_OF_4, post(b"/b", b"abcd")[:-4]):
        handler.drops_body = True
        connection.send(head + b"ab")
        taken = handler.taken[-1]
        connection.send(b"cd")
        assert (taken.body, connection.transport.writes) == (b"", [])
        handler.drops_body = False
        connection.send(post(b"/c"))
        taken.ok()
        await connection.done()
        assert connection.transport.writes[0] == ANSWER
        assert parsed(connection.transport.writes[1])[2] == b"2 /c"
        connection.transport.writes.clear()


async def test_idle_connections_close(handler: Takes) -> None:
    """After the last answer, not the first; one timer serves all answers."""
    clock = Clock()
    connection = await connected(handler, clock=clock)
    for _ in range(3):
        connection.send(post(b"/a"))
        handler.ok()
        clock.pass_s(4)
        assert (connection.transport.closing, len(clock.timers)) == (False, 1)
    connection.send(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
    await connection.done()
    clock.pass_s(4.9)
    assert not connection.transport.closing
    clock.pass_s(0.2)
    assert connection.transport.closing


async def test_a_client_that_does_not_read_its_answers_is_cut(handler: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    connection = await connected(handler, clock=clock)
    protocol, transport = connection.protocol, connection.transport
    protocol.pause_writing()
    transport.unsent = 100_000
    connection.send(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
    for left in (90_000, 80_000):  # it reads slowly
        clock.pass_s(5)
        transport.unsent = left
    for _ in range(2):  # and then so slowly that it is as far behind as before
        protocol.resume_writing()
        protocol.pause_writing()
        clock.pass_s(5)
    for left in (2_000_000, 1_998_000):  # or reads what the system holds, which takes no more for now
        monkeypatch.setattr(uvicorn_fixes, "unacknowledged", lambda transport, left=left: left)
        clock.pass_s(5)
    assert not transport.closing
    clock.pass_s(5)
    assert (transport.closing, transport.lost) == (True, True)
    connection.hang_up()
    await connection.done()
    assert clock.timers == []


async def test_shutdown_waits_for_an_answer_and_closes_with_it(handler: Takes) -> None:
    connection = await connected(handler, post(b"/a"))
    connection.protocol.shutdown()
    assert not connection.transport.closing
    handler.taken[0].ok()
    assert connection.transport.writes == [LAST_ANSWER]
    assert connection.transport.closing


# a head that has been seen on the connection is not parsed again


class Counted:
    """A parser that counts what it is fed."""

    def __init__(self, connection: Connection) -> None:
        self.fed = 0
        self._parser = connection.protocol.parser
        connection.protocol.parser = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        self.fed += 1
        self._parser.feed_data(data)


async def test_a_head_is_parsed_once(handler: Takes) -> None:
    connection = await connected(handler)
    counted = Counted(connection)
    for number in range(5):
        connection.send(post(b"/a", b"body%d" % number, b"X-A: b"))
        assert handler.taken[-1].body == b"body%d" % number
        handler.ok()
    assert (counted.fed, len({id(headers) for _, headers, _ in handler.heads})) == (1, 1)
    for request in (post(b"/a", b"longer!"), post(b"/a", b"body5", b"X-A: c"), b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"):
        connection.send(request)
        if request.startswith(b"POST"):
            handler.ok()
        await connection.done()
    assert counted.fed == 4
    assert handler.heads[-1][1][b"x-a"] == b"c"
    assert connection.transport.written.count(b"HTTP/1.1 200 OK") == 8


@pytest.mark.parametrize("first", [b"\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", post(b"/b", b"POST ")])
async def test_a_head_behind_something_else_in_one_read(handler: Takes, first: bytes) -> None:
    """What is remembered is that head alone, or nothing."""
    connection = await connected(handler)
    handler.full = True
    connection.send(first + post(b"/a", b"one"))
    await connection.done()
    for body in (b"two", b"six"):
        connection.send(post(b"/a", body))
        await connection.done()
    assert [taken.body for taken in handler.taken[-2:]] == [None, None]
    assert [url for url, _, _ in handler.heads[-2:]] == [b"/a", b"/a"]
    connection.send(first + post(b"/a", b"one"))
    await connection.done()
    assert connection.transport.written.count(b"HTTP/1.1 200 OK") == 4 + 2 * (first != b"\r\n\r\n")


async def test_many_refused_in_one_read(handler: Takes) -> None:
    handler.full = True
    connection = await connected(handler, post(b"/a"))
    connection.send(post(b"/a") * 5000)
    assert connection.transport.writes == [ANSWER] * 5001
    connection.send(post(b"/a") * 10 + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + post(b"/a"))
    await connection.done()
    assert [b"x-way" in answer for answer in connection.transport.writes[-12:]] == [False] * 10 + [True] * 2
