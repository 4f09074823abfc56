"""A server in the test's own loop that answers as it is told: at once, later, in pieces, or wrongly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from loadtest.generator.http import line_of, value_of

#: What to do with a request: bytes to answer with, or None to leave it open; `Scripted` is the connection.
Script = Callable[["Scripted", bytes], bytes | None]

METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
}


def http(body: bytes | Any, status: int = 200, **headers: object) -> bytes:
    """A whole answer; `body` is bytes or a value for JSON, header names have _ for -."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def v2(rows: int = 1, value: float = 0.5, **more: Any) -> dict[str, Any]:
    """A right answer of the model in METADATA."""
    return {"outputs": [{"name": "y", "datatype": "FP32", "shape": [rows, 1], "data": [value] * rows, **more}]}


class Scripted(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.served = 0
        self.lost = asyncio.Event()
        self._buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.server.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = int(value_of(head, line_of(b"content-length")) or 0)
            whole = end + 4 + length
            if len(self._buffer) < whole:
                return
            request, self._buffer = self._buffer[:whole], self._buffer[whole:]
            self.server.requests.append(request)
            answer = self.server.script(self, request)
            self.served += 1
            if answer is not None:
                self.transport.write(answer)


class Server:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.connections: list[Scripted] = []
        self.port = 0
        self.listening: asyncio.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def vanish(self) -> None:
        """Close every connection and take no further ones."""
        self.listening.close()
        for connection in self.connections:
            connection.transport.abort()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Server]:
    found = Server(script)
    found.listening = await asyncio.get_running_loop().create_server(lambda: Scripted(found), "127.0.0.1", 0)
    found.port = found.listening.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        found.vanish()
        await asyncio.sleep(0)  # the transports' closing callbacks
        await asyncio.sleep(0)


def model(infer: Script) -> Script:
    """Metadata for GET; `infer` for the rest."""
    return lambda connection, request: http(METADATA) if request.startswith(b"GET") else infer(connection, request)


def sends(data: bytes, *, close: bool) -> Script:
    """These bytes, whatever was asked; `close`: and the connection ends."""

    def answer(connection: Scripted, request: bytes) -> None:
        connection.transport.write(data)
        if close:
            connection.transport.close()

    return answer
