"""A server that does nothing: every request gets the same prepared response.

A client's rate against it is the client's own limit, and shows whether the client is the bottleneck elsewhere.
`python -m loadtest.bench.constant PORT`, with the body of the response on stdin.
"""

from __future__ import annotations

import asyncio
import sys

from loadtest.common.paths import LOOPBACK
from loadtest.generator.run import in_loop

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"

#: Similar to the headers of the server under test, so that the client has as much to read.
HEAD = (
    "HTTP/1.1 200 OK\r\nserver: nobody\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\ncontent-type: application/json\r\n"
    "content-length: {length}\r\nx-request-id: 0123456789abcdef\r\nx-batch-size: 32\r\n"
    "server-timing: queue;dur=0.123, compute;dur=0.456, total;dur=0.789\r\n\r\n"
)


class Constant(asyncio.Protocol):
    """Counts bytes: all requests of a connection must be as long as the first, whose length is read."""

    def __init__(self, response: bytes) -> None:
        self.response = response
        self.transport: asyncio.Transport
        self.start = b""
        self.length = 0
        self.received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not self.length:
            self.start += data
            self.length = request_length(self.start)
        if self.length and self.received >= self.length:
            self.received -= self.length
            self.transport.write(self.response)


def request_length(data: bytes) -> int:
    """The length in bytes of the request that `data` begins with; 0 while its header is incomplete."""
    end = data.find(HEAD_END)
    if end < 0:
        return 0
    head = data[: end + 2].lower()
    at = head.find(LENGTH)
    if at < 0:  # it has no body, as a readiness probe's
        return end + 4
    at += len(LENGTH)
    return end + 4 + int(head[at : head.index(b"\r\n", at)])


async def serve(port: int, body: bytes) -> None:
    """Serve until the process is terminated."""
    response = HEAD.format(length=len(body)).encode("ascii") + body
    server = await asyncio.get_running_loop().create_server(lambda: Constant(response), LOOPBACK, port)
    async with server:
        await server.serve_forever()


def main() -> None:
    body = sys.stdin.buffer.read()
    in_loop(serve(int(sys.argv[1]), body))


if __name__ == "__main__":
    main()
