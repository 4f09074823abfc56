"""Through nginx, with no setting of its own, a client reads the beginning of a text before the model has written on."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.http.connection.connection import HttpProtocol
from app.http.connection.idle_connections import IdleConnections
from loadtest.common.paths import LOOPBACK
from loadtest.drill import nginx
from tests.test_http.echo import Caller
from tests.test_http.writers import Writer, writer

pytestmark = pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="needs nginx")
WAIT_S = 30
SENT = json.dumps({"text_input": "one"}).encode()
REQUEST = b"POST /v2/models/echo/generate_stream HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (
    len(SENT), SENT,
)  # fmt: skip


class ModelCall(Caller):
    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Anything but a call, such as whether the server is ready."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def model() -> Writer:
    return writer()


@pytest.fixture(params=["1.1", "1.0"])
async def port(request: pytest.FixtureRequest, model: Writer, tmp_path: Path) -> AsyncIterator[int]:
    """Of nginx, which asks the server with this version of HTTP: older releases do with 1.0 where nothing is said."""
    caller = ModelCall(model, "asgi")
    config = uvicorn.Config(caller.app, http=HttpProtocol, interface="asgi3", log_config=None, ws="none")
    config.load()
    loop, state = asyncio.get_running_loop(), ServerState()
    make = partial(
        HttpProtocol, config, state, caller.state, loop, take=caller.app.fast_path.take, body_timeout_s=WAIT_S,
        idle=IdleConnections(WAIT_S, 100), hold=caller.app.resources.bodies.add,
    )  # fmt: skip
    server = await loop.create_server(make, LOOPBACK, 0)
    made, version = nginx.configuration, f"version {request.param};"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nginx, "configuration", lambda *given: made(*given).replace("version 1.1;", version))
        front = nginx.start(tmp_path, [server.sockets[0].getsockname()[1]], {})
    async with server:
        with front:
            await asyncio.to_thread(front.wait_ready, limit_s=WAIT_S)
            yield front.port


@asynccontextmanager
async def asked(model: Writer, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which the text has been asked for, and its first piece was written."""
    async with asyncio.timeout(WAIT_S):
        reader, writing = await asyncio.open_connection(LOOPBACK, port)
        writing.write(REQUEST)
        await model.ran.wait()
        model.last.piece("two", 1)
        yield reader, writing
        writing.close()


async def test_the_first_event_comes_before_the_last_is_written(model: Writer, port: int) -> None:
    async with asked(model, port) as (reader, _):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        assert b'"text_output":"two"}\n\n' in await reader.readuntil(b"}\n\n")
        assert model.finished == []  # it is still being written
        model.last.piece(" three", 2)
        assert b'"text_output":" three"}\n\n' in await reader.readuntil(b"}\n\n")
        model.last.end("two three")
        assert b'"finish_reason":"stop"' in await reader.readuntil(b"}\n\n")


async def test_a_client_of_nginx_that_leaves_ends_its_call(model: Writer, port: int) -> None:
    ended = asyncio.get_running_loop().create_future()
    model.finish = lambda outcome, total_ns, klass: ended.set_result(outcome)  # type: ignore[method-assign]
    async with asked(model, port) as (reader, writing):
        await reader.readuntil(b"}\n\n")
        writing.transport.abort()
        assert await ended == "client_gone"
