"""What is sent again, when, and when that ends: nothing that the server may have run, unless the caller says so."""

from __future__ import annotations

import pickle
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count, pairwise

import httpx
import numpy as np
import pytest
from fake_server import Driven, FakeServer, failing, limited, repeated, rows

from starling_client import (
    BadRequest,
    Client,
    ConnectionLost,
    DeadlineExceeded,
    DeadlineUnreachable,
    ModelFailed,
    NotConnected,
    Refused,
    Retry,
    ServerError,
    StarlingError,
    TimedOut,
    Unavailable,
)
from starling_client.errors import server_error

Connect = Callable[..., Driven]
ONE = {"x": rows(1)}


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_are_sent_again_when_the_server_says(connect: Connect, server: FakeServer, status: int) -> None:
    server.script = [failing(status, Retry_After="2"), failing(status, Retry_After="3")]
    client = connect(server)
    found = client.infer("double", ONE, request_id="mine")
    assert (found.tries, found.outputs["s"].tolist()) == (3, [1])
    assert client.waited == [2 * 1.05, 3 * 1.05]  # jitter only ever adds
    assert {request.headers["x-request-id"] for request in server.infers} == {"mine"}
    assert len({request.content for request in server.infers}) == 1


def test_a_date(connect: Connect, server: FakeServer) -> None:
    at = datetime.now(UTC) + timedelta(seconds=3)
    server.script = [failing(503, Retry_After=format_datetime(at, usegmt=True))]
    client = connect(server)
    client.predict("double", ONE)
    assert 0 < client.waited[0] <= 3 * 1.05


@pytest.mark.parametrize("told", [{}, {"Retry_After": "soon"}])
def test_pauses_grow_where_the_server_says_nothing(connect: Connect, server: FakeServer, told: dict[str, str]) -> None:
    """And where it says at once, it is not hammered."""
    server.script = [*repeated(lambda: failing(503, **told), 6)]
    client = connect(server, retry=Retry(longest_wait_s=1, jitter=0))
    client.predict("double", ONE)
    assert client.waited == [0.1, 0.2, 0.4, 0.8, 1, 1]
    server.script = [failing(429, Retry_After="0")]
    client.predict("double", ONE)
    assert client.waited[-1] >= 0.1


@pytest.mark.parametrize(("status", "kind"), [(429, Refused), (503, Unavailable)])
def test_it_ends_at_the_deadline_without_a_wait_for_nothing(
    connect: Connect, server: FakeServer, status: int, kind: type[ServerError]
) -> None:
    server.script = [*repeated(lambda: failing(status, "busy", Retry_After="4", X_Request_ID="r-9"), 50)]
    client = connect(server, retry=Retry(deadline_s=10))
    with pytest.raises(kind, match=f"{status}: busy") as raised:
        client.predict("double", ONE)
    error = raised.value
    assert sum(client.waited) < 10
    assert (error.tries, error.message, error.status) == (3, "busy", status)
    assert (error.retry_after_s, error.request_id) == (4, "r-9")
    with pytest.raises(kind):
        client.predict("double", ONE, deadline_s=3)
    assert len(server.infers) == 4


def test_it_ends_after_so_many_attempts(connect: Connect, server: FakeServer) -> None:
    server.script = [*repeated(lambda: failing(503), 50)]
    with pytest.raises(Unavailable) as raised:
        connect(server, retry=Retry(attempts=3)).predict("double", ONE)
    assert (raised.value.tries, len(server.infers)) == (3, 3)
    with pytest.raises(Unavailable):
        connect(server, retry=Retry(attempts=1)).predict("double", ONE)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, BadRequest, "bad_request"), (408, ServerError, "http_error"), (500, ModelFailed, "model_failed"),
        (504, DeadlineExceeded, "deadline_exceeded"),
    ],
)  # fmt: skip
def test_other_errors_are_not_sent_again(
    connect: Connect, server: FakeServer, status: int, kind: type[ServerError], code: str
) -> None:
    server.script = [failing(status, "inputs[0] (x).shape: no", Retry_After="1")]
    client = connect(server)
    with pytest.raises(kind) as raised:
        client.predict("double", ONE)
    assert type(raised.value) is kind
    assert (raised.value.code, raised.value.message, client.waited) == (code, "inputs[0] (x).shape: no", [])


def test_a_deadline_out_of_reach_is_not_sent_again(connect: Connect, server: FakeServer) -> None:
    server.script = [failing(429, "too late", Retry_After="1", X_Error_Code="deadline_unreachable")]
    client = connect(server)
    with pytest.raises(DeadlineUnreachable, match="429: too late"):
        client.predict("double", ONE, timeout_ms=1)
    assert client.waited == []


def test_no_connection_is_tried_again(connect: Connect, server: FakeServer) -> None:
    """Nothing was sent. The errors of httpx are the cause of ours."""
    server.script = [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), httpx.PoolTimeout("full")]
    client = connect(server)
    assert client.infer("double", ONE).tries == 4
    server.script = [httpx.ConnectError("refused")] * 10
    with pytest.raises(NotConnected, match="no connection to http://fake: refused") as raised:
        client.predict("double", ONE)
    assert isinstance(raised.value.__cause__, httpx.ConnectError)
    assert raised.value.status is None
    assert all(earlier <= later for earlier, later in pairwise(client.waited[-9:]))


@pytest.mark.parametrize(
    ("why", "tries"),
    [
        (socket.gaierror(socket.EAI_NONAME, "unknown"), 1),
        (ssl.SSLCertVerificationError("self-signed"), 1),
        (socket.gaierror(socket.EAI_AGAIN, "a name server is away for a moment"), 2),
    ],
)
def test_a_name_or_certificate_that_is_wrong_stays_so(
    connect: Connect, server: FakeServer, why: OSError, tries: int
) -> None:
    error = httpx.ConnectError(str(why))
    error.__cause__ = OSError("all attempts failed")
    error.__cause__.__context__ = ExceptionGroup("each", [why])
    server.script = [error]
    client = connect(server)
    with suppress(NotConnected):
        client.predict("double", ONE)
    assert len(server.infers) == tries


@pytest.mark.parametrize("error", [httpx.ReadError("reset"), httpx.RemoteProtocolError("gone"), httpx.WriteError("")])
def test_a_connection_that_broke_is_not_unless_the_caller_says_so(
    connect: Connect, server: FakeServer, error: httpx.TransportError
) -> None:
    """The model may have run."""
    server.script = [error]
    with pytest.raises(ConnectionLost, match="may have run"):
        connect(server).predict("double", ONE)
    server.script = [error]
    assert connect(server, retry=Retry(lost=True)).infer("double", ONE).tries == 2


def test_questions_that_change_nothing_are_asked_again_in_any_case(connect: Connect, server: FakeServer) -> None:
    broken: list[Exception] = [httpx.ReadError("reset")]

    def once(request: httpx.Request) -> httpx.Response:
        if broken:
            raise broken.pop()
        return server(request)

    client = connect(once)
    assert client.metadata("double").versions == ("1",)
    assert len(client.waited) == 1
    broken.append(httpx.ReadTimeout(""))
    with pytest.raises(TimedOut, match=r"had answered$"):  # no model has run for that
        client.metadata("double")


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_without_its_server_says_nothing_of_it(connect: Connect, server: FakeServer, status: int) -> None:
    server.config = limited(8)
    away = ["/v2/models/double", "/v2", "/v2/models/double/config"]

    def behind(request: httpx.Request) -> httpx.Response:
        if request.url.path not in away:
            return server(request)
        away.remove(request.url.path)
        return httpx.Response(status, text="<html>")

    client = connect(behind)
    assert client.infer("double", rows(20)).outputs["s"].shape == (20,)
    assert len(client.waited) == 3
    assert max(server.rows) <= 8
    assert all("inference-header-content-length" in request.headers for request in server.infers)


@pytest.mark.parametrize("lost", [False, True])
def test_a_timeout_is_the_end(connect: Connect, server: FakeServer, lost: bool) -> None:
    server.script = [httpx.ReadTimeout("")]
    client = connect(server, retry=Retry(lost=lost))
    with pytest.raises(TimedOut, match="deadline_s passed before http://fake had answered; the model may have run"):
        client.predict("double", ONE)
    assert (len(server.infers), client.waited) == (1, [])


@pytest.mark.parametrize("step_s", [0.1, 10.0])
def test_a_body_that_is_taken_slowly_is_given_up(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, step_s: float
) -> None:
    """Each look at the clock finds it so much later."""
    ticks = count(0.0, step_s)
    monkeypatch.setattr("starling_client.client.monotonic", lambda: next(ticks))
    http = httpx.Client(transport=httpx.MockTransport(server))
    large = np.ones((200_000, 2), "f4")
    with Client("http://fake", http=http, max_rows=len(large)) as client:
        if step_s < 1:
            assert (client.predict("double", large, outputs=["y"]) == large * 2).all()
            assert int(server.infers[0].headers["content-length"]) == len(server.infers[0].content)
            return
        with pytest.raises(TimedOut, match="the model may have run"):
            client.predict("double", large, outputs=["y"])
    assert server.infers == []


def test_no_request_is_sent_past_the_deadline(connect: Connect, server: FakeServer) -> None:
    client = connect(server)

    def slow(request: httpx.Request) -> httpx.Response:
        client.now += 20
        return server(request)

    slowly = connect(slow)
    slowly.client._calls.clock = lambda: client.now
    with pytest.raises(TimedOut, match="before the request could be sent") as raised:
        slowly.predict("double", ONE)
    assert (server.paths, raised.value.tries) == (["/v2/models/double", "/v2"], 0)


def test_ready_asks_once(connect: Connect) -> None:
    told: list[httpx.Response | Exception] = [
        httpx.Response(200, json={"ready": True}), failing(503, "loading"), httpx.ConnectError("refused"),
        httpx.ReadTimeout(""), failing(502, "bad gateway"), failing(504), failing(404, "unknown"),
    ]  # fmt: skip
    paths = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        found = told.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    client = connect(answer)
    assert [client.ready(), client.ready(), client.ready("m"), client.ready("m", 2)] == [True, False, False, False]
    assert [client.ready("m"), client.ready("m")] == [False, False]
    with pytest.raises(StarlingError, match="unknown"):
        client.ready("n")
    assert paths == [
        "/v2/health/ready", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/versions/2/ready",
        "/v2/models/m/ready", "/v2/models/m/ready", "/v2/models/n/ready",
    ]  # fmt: skip
    assert client.waited == []


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx bounds the wait for each piece only."""
    clock = count(0, 10)
    monkeypatch.setattr("starling_client.client.monotonic", lambda: next(clock))
    sent = []

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            sent.append(b" ")
            yield b" "

    http = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=pieces())))
    with pytest.raises(TimedOut), Client("fake", http=http) as client:
        client.predict("double", ONE)
    assert len(sent) < 5


def test_errors_travel_between_processes() -> None:
    error = server_error(429, "busy")
    error.tries, error.retry_after_s = 3, 1.5
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.status, back.message) == (Refused, "429: busy", 429, "busy")
    assert (back.tries, back.retry_after_s) == (3, 1.5)
    assert str(pickle.loads(pickle.dumps(TimedOut("late")))) == "late"


@pytest.mark.parametrize(
    "fields",
    [{"deadline_s": float("inf")}, {"attempts": 0}, {"first_wait_s": 0}, {"jitter": 2}],
)
def test_retries_without_end_cannot_be_asked_for(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        Retry(**fields)  # type: ignore[arg-type]
