"""Clients that send many requests at once and go away: no line in the log, and the server as it was."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable

import pytest

from .server import PATIENCE_S, Server, eventually

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
REQUESTS = {
    "inference": b"POST /v2/models/narrow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s"
    % (len(BODY), BODY),
    "an error": b"POST /predict/nobody HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    "a route of FastAPI": b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST instead of FIN


def test_pipelining_and_hanging_up(start: Callable[..., Server]) -> None:
    server = start("narrow")
    host, _, port = server.host.partition(":")
    for request in REQUESTS.values():
        for way in ("close", "reset", "close after the first answer", "reset after the first answer"):
            for _ in range(5):
                with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
                    if "reset" in way:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    connection.sendall(request * 50)
                    if "answer" in way:
                        assert connection.recv(12).startswith(b"HTTP/1.1 ")
    eventually(lambda: server.waiting("narrow") == 0)
    assert server.infer("narrow", [[1]]).status == 200
    assert server.slots("narrow") == 0
    assert server.stop() == 0  # after which all its lines have been read
    assert [line for line in server.lines if any(word in line for word in ("WARNING", "ERROR", "Traceback"))] == []


@pytest.mark.parametrize("path", ["/v2/models/\xe9", "/\xff\xfe"])
def test_a_malformed_request(server: Server, path: str) -> None:
    host, _, port = server.host.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode("latin-1"))
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert list(json.loads(body)) == ["error"]
