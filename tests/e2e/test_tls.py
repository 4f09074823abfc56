"""HTTPS by the server itself: the same answers on both ways, a new certificate without a new server, a clean end."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from .server import CERTIFICATES, DEMO, PATIENCE_S, Server

ROWS = 4000  # whose body is too long for the fast path, as JSON


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the certificate and its key as the server reads them."""
    for name in ("pem", "key"):
        shutil.copyfile(CERTIFICATES / f"first.{name}", tmp_path / f"tls.{name}")
    return tmp_path


@pytest.fixture
def server(start: Callable[..., Server], place: Path) -> Server:
    flags = ("--tls-cert", str(place / "tls.pem"), "--tls-key", str(place / "tls.key"))
    return start("narrow", flags=(*flags, "--model", f"echo={DEMO / 'echo'}", "--drain-limit-s", "2"))


def shown(connection: http.client.HTTPConnection) -> str:
    """Whose certificate the server has shown."""
    assert isinstance(connection.sock, ssl.SSLSocket)
    found = connection.sock.getpeercert()
    assert found
    return dict(part[0] for part in found["subject"])["commonName"]  # type: ignore[arg-type, misc, return-value]


def ask(connection: http.client.HTTPConnection, rows: int = 1) -> None:
    sent = [[n, 2, 3, 4] for n in range(rows)]
    connection.request("POST", "/predict/echo", json.dumps(sent), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, [row["y"] for row in json.loads(answer.read())]) == (200, sent)


def test_https(server: Server, place: Path) -> None:
    with contextlib.ExitStack() as stack:
        check(server, place, lambda: stack.enter_context(contextlib.closing(server.connection())))
        server.tell(signal.SIGINT)
        assert server.ended() == 0
    server.stop()
    assert not [line for line in server.lines if "graceful" in line]  # no connection was waited for to the limit


def check(server: Server, place: Path, connect: Callable[[], http.client.HTTPConnection]) -> None:
    kept = connect()
    for rows in (1, 1, 2, ROWS // 4, 1):  # the second has a head that is known
        ask(kept, rows)
    assert shown(kept) == "first"
    assert server.get("/v2/models").json() == {"models": ["echo", "narrow"]}
    closing = server.get("/v2", {"Connection": "close"})
    assert (closing.status, closing.headers["connection"]) == (200, "close")

    with socket.create_connection(kept.sock.getpeername(), PATIENCE_S) as plain:  # HTTP where HTTPS is spoken
        plain.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP")

    for name in ("key", "pem"):
        shutil.copyfile(CERTIFICATES / f"second.{name}", place / f"tls.{name}")
    server.line("tls_cert .* read again")
    new = connect()
    ask(new)
    ask(kept)
    assert (shown(new), shown(kept)) == ("second", "first")
