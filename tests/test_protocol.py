"""uvicorn's HTTP protocol as this server changes it, on a transport that only remembers what was written."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.protocol import EXTENSION, HttpProtocol

ROOT = Path(__file__).parents[1]
App = Callable[[Any, Any, Any], Awaitable[None]]


class Transport(asyncio.Transport):
    """A connection whose other side is the test. Once it is lost, a write raises, as uvloop's do."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False
        self.lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self.lost:
            raise RuntimeError("the handler is closed")
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    """A protocol with an application behind it and a Transport before it."""

    def __init__(self, app: App) -> None:
        config = uvicorn.Config(app, http=HttpProtocol, interface="asgi3", log_config=None, access_log=False)
        config.load()
        self.state = ServerState()
        self.transport = Transport()
        self.protocol = HttpProtocol(config, self.state, {}, asyncio.get_running_loop())
        self.protocol.access_log = False
        self.protocol.connection_made(self.transport)

    def hang_up(self) -> None:
        self.transport.closing = self.transport.lost = True
        self.protocol.connection_lost(ConnectionResetError())

    async def done(self) -> None:
        """Until no request is being answered."""
        async with asyncio.timeout(10):
            while self.state.tasks:
                await asyncio.wait(self.state.tasks)


REQUEST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok"
HEAD = b"content-length: 2\r\n"


async def test_an_answer_in_one_piece() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["extensions"][EXTENSION](HEAD, b"ok", False)

    connection = Connection(app)
    connection.protocol.data_received(REQUEST % 1 + REQUEST % 2)
    await connection.done()
    assert connection.transport.written == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" * 2
    assert not connection.transport.closing


@pytest.mark.parametrize("way", ["in one piece", "uvicorn's"])
@pytest.mark.parametrize("answered", [0, 1])
async def test_a_client_that_pipelines_and_hangs_up(way: str, answered: int, caplog: pytest.LogCaptureFixture) -> None:
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
        if way == "in one piece" and scope["extensions"][EXTENSION](HEAD, b"ok", False):
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    caplog.set_level("WARNING")
    connection = Connection(app)
    connection.protocol.data_received(b"".join(REQUEST % n for n in range(50)))
    async with asyncio.timeout(10):
        await waiting.wait()
    connection.hang_up()
    await connection.done()
    assert begun == [f"/{n}" for n in range(answered + 1)]
    assert heard == ["http.disconnect"]
    assert connection.transport.written.count(b"200 OK") == answered
    assert caplog.messages == []


async def test_a_malformed_request_is_answered_in_json() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    connection = Connection(app)
    connection.protocol.data_received(b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n")
    head, _, body = connection.transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
    assert json.loads(body) == {"error": "the request is not valid HTTP/1.1"}
    assert connection.transport.closing


# What is relied on inside uvicorn


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_tested_release_of_uvicorn_is_the_only_one_allowed() -> None:
    """Its internals change without notice: from one minor release below to one above nothing else is installed."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (wanted,) = [line for line in dependencies if line.startswith("uvicorn")]
    (tested,) = re.findall(r"^uvicorn==(\d+)\.(\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    major, minor = map(int, tested)
    assert wanted.split("#")[0].strip() == f"uvicorn>={major}.{minor},<{major}.{minor + 1}"
    assert uvicorn.__version__.startswith(f"{major}.{minor}.")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (HttpToolsProtocol.__init__, ["self", "config", "server_state", "app_state", "_loop"]),
        (HttpToolsProtocol.on_headers_complete, ["self"]),
        (HttpToolsProtocol._start_asgi_task, ["self", "cycle", "app"]),
        (HttpToolsProtocol.connection_lost, ["self", "exc"]),
        (HttpToolsProtocol.shutdown, ["self"]),
        (HttpToolsProtocol.send_400_response, ["self", "msg"]),
        (uvicorn.Server.__init__, ["self", "config"]),
        (uvicorn.Server.run, ["self", "sockets"]),
        (uvicorn.Server.serve, ["self", "sockets"]),
        (uvicorn.Server.handle_exit, ["self", "sig", "frame"]),
    ],
)
def test_methods_that_are_overridden_or_called(method: Callable[..., Any], expected: list[str]) -> None:
    assert parameters(method) == expected


async def test_state_of_a_connection_and_of_a_request() -> None:
    seen: list[RequestResponseCycle] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(connection.protocol._answering)  # type: ignore[arg-type]
        assert scope["extensions"][EXTENSION](HEAD, b"ok", True)

    connection = Connection(app)
    protocol = connection.protocol
    assert protocol.cycle is None  # type: ignore[comparison-overlap]  # until the first request, see `shutdown`
    protocol.data_received(REQUEST % 1 + REQUEST % 2)
    assert [type(cycle) for cycle, _ in protocol.pipeline] == [RequestResponseCycle]
    assert protocol.scope["type"] == "http"
    await connection.done()
    (cycle,) = seen
    assert isinstance(protocol.flow, FlowControl)
    assert cycle.flow.write_paused is False
    assert (cycle.disconnected, cycle.response_started, cycle.response_complete) == (False, True, True)
    assert (cycle.keep_alive, cycle.access_log, cycle.default_headers) == (False, False, [])
    assert cycle.scope["method"] == "POST"
    assert cycle.transport is connection.transport
    assert isinstance(cycle.message_event, asyncio.Event)
    assert connection.transport.closing
    assert protocol in connection.state.connections
    assert callable(cycle.on_response)


def test_state_of_a_server() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    assert (server.started, server.should_exit, server.force_exit) == (False, False, False)
    assert (server.server_state.connections, server.server_state.tasks) == (set(), set())
    settings = {
        "http", "interface", "proxy_headers", "log_config", "access_log", "timeout_keep_alive",
        "timeout_graceful_shutdown", "server_header", "lifespan",
    }  # fmt: skip
    assert settings <= set(parameters(uvicorn.Config.__init__))
