"""A lean asyncio client over bare sockets: prepared bytes out, one answer in."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Self

from .server import PATIENCE_S, Reply

TYPED = {"Content-Type": "application/json"}


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole request, as bytes to send."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return b"POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s" % (
        path.encode(), lines.encode(), len(body), body,
    )  # fmt: skip


def tensor(rows: int, columns: int, data: list[Any], **fields: Any) -> bytes:
    """A V2 body with the FP32 input `x`. `fields` are those of the request beside its inputs."""
    x = {"name": "x", "shape": [rows, columns], "datatype": "FP32", "data": data}
    return json.dumps({**fields, "inputs": [x]}).encode()


def infer(model: str, row: list[float], **fields: Any) -> bytes:
    """A V2 inference of one FP32 row `x`, as bytes to send."""
    return post(f"/v2/models/{model}/infer", tensor(1, len(row), row, **fields))


def get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode()


def halved(requests: list[bytes]) -> list[bytes]:
    """Each piece ends in the middle of a request, and in turn within its head or its body."""
    whole = b"".join(requests)
    cuts, end = [0], 0
    for number, request in enumerate(requests):
        at = len(request) // 4 if number % 2 else len(request) - 3
        cuts.append(end + at)
        end += len(request)
    return [whole[a:b] for a, b in pairwise([*cuts, end])]


#: How requests in a row are written: each makes pieces of them.
PATTERNS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "all in one": lambda requests: [b"".join(requests)],
    "one each": lambda requests: requests,
    "cut in the middle": halved,
}


class Wire:
    """One connection. Use as `async with await Wire.open(host)`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, receive_buffer: int = 0) -> Wire:
        """`receive_buffer` bytes of the kernel's for what is not read yet; 0: as many as it likes."""
        name, _, port = host.partition(":")
        sock = socket.socket(proto=socket.IPPROTO_TCP)  # stated, or asyncio leaves Nagle's delay on
        try:
            if receive_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (name, int(port)))
            return cls(*await asyncio.open_connection(sock=sock))
        except BaseException:
            sock.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._writer.transport.abort()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    async def seen(self) -> None:
        """Return when the server has read what was sent to it before this call, on any of its connections."""
        assert (await self.call(get("/v2/health/live"))).status == 200

    async def call(self, request: bytes) -> Reply:
        """Send, and read the answer. Raises OSError or IncompleteReadError where the connection ends first."""
        self.send(request)
        return await self.answer()

    def send(self, request: bytes) -> None:
        self._writer.write(request)

    async def answer(self) -> Reply:
        async with asyncio.timeout(PATIENCE_S):
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
            pairs = (line.split(": ", 1) for line in lines if line)
            headers = {name.lower(): value for name, value in pairs}
            return Reply(int(first[9:12]), headers, await self._reader.readexactly(int(headers["content-length"])))


async def once(host: str, request: bytes) -> Reply:
    """On a connection of its own."""
    async with await Wire.open(host) as wire:
        return await wire.call(request)
