"""One request after another on one blocking socket: a client that adds little to a latency, and leaves none out.

An event loop in the client takes as long as a bare server itself.
"""

from __future__ import annotations

import re
import socket
import time
from array import array

import numpy as np

from loadtest.common.paths import LOOPBACK
from loadtest.generator.load import TIMEOUT_S, Load, LoadError, LoadResult
from loadtest.generator.run import without_collections
from loadtest.generator.stats import percentile

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_OK = b"HTTP/1.1 200 "
_PIECE = 1 << 16


def run(load: Load) -> LoadResult:
    """Run `load`, which is for one connection. Raises LoadError unless every answer is a 200."""
    assert load.connections == 1
    payload = load.request.encode(load.port)
    latency_ns = array("q")
    try:
        with socket.create_connection((LOOPBACK, load.port), TIMEOUT_S) as connection, without_collections():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ends_ns = time.perf_counter_ns() + round(load.seconds * 1e9)
            while (sent_ns := time.perf_counter_ns()) < ends_ns:
                connection.sendall(payload)
                answer = receive(connection)
                latency_ns.append(time.perf_counter_ns() - sent_ns)
                if not answer.startswith(_OK):
                    raise LoadError(f"{load.request.name}: {answer[:200]!r}")
    except OSError as error:
        raise LoadError(f"{load.request.name}: {error}") from error
    p50, p90, p99 = (percentile(np.array(latency_ns), share) or 0.0 for share in (0.5, 0.9, 0.99))
    return LoadResult(len(latency_ns), load.seconds, p50, p90, p99)


def receive(connection: socket.socket) -> bytes:
    """One whole answer. Raises OSError if it has no length or the connection ends before it."""
    answer = b""
    whole = 0
    while not whole or len(answer) < whole:
        piece = connection.recv(_PIECE)
        if not piece:
            raise ConnectionError(f"the connection ended after {answer[:200]!r}")
        answer += piece
        if not whole and (end := answer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(answer, 0, end)
            if length is None:
                raise ConnectionError(f"an answer without Content-Length: {answer[:end]!r}")
            whole = end + 4 + int(length[1])
    return answer
