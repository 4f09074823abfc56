"""A lean asyncio client over bare sockets: prepared bytes out, one answer in."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple, Self

from .server import PATIENCE_S


class Answer(NamedTuple):
    """`head` is the answer's head as it came."""

    status: int
    head: bytes
    body: bytes

    @property
    def closes(self) -> bool:
        return b"\r\nconnection: close" in self.head.lower()


def infer(model: str, row: list[float], **fields: Any) -> bytes:
    """A V2 inference of one FP32 row `x`, as bytes to send. `fields` are those of the request beside its inputs."""
    tensor = {"name": "x", "shape": [1, len(row)], "datatype": "FP32", "data": row}
    body = json.dumps({**fields, "inputs": [tensor]}).encode()
    return b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (
        model.encode(), len(body), body,
    )  # fmt: skip


def get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode()


class Wire:
    """One connection. Use as `async with await Wire.open(host)`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str) -> Wire:
        name, _, port = host.partition(":")
        return cls(*await asyncio.open_connection(name, int(port)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._writer.transport.abort()

    async def call(self, request: bytes) -> Answer:
        """Send, and read the answer. Raises OSError or IncompleteReadError where the connection ends first."""
        self.send(request)
        return await self.answer()

    def send(self, request: bytes) -> None:
        self._writer.write(request)

    async def answer(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            at = lower.index(b"\r\ncontent-length:") + 17
            length = int(lower[at : lower.index(b"\r\n", at)])
            return Answer(int(head[9:12]), head, await self._reader.readexactly(length))


async def once(host: str, request: bytes) -> Answer:
    """On a connection of its own."""
    async with await Wire.open(host) as wire:
        return await wire.call(request)
