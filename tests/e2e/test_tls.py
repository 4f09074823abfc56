"""HTTPS by the server itself: the same answers on both ways, a new certificate without a new server, a clean end."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from .server import CERTIFICATES, DEMO, Server


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
    subject: Any = (connection.sock.getpeercert() or {})["subject"]
    found: str = dict(part[0] for part in subject)["commonName"]
    return found


def ask(connection: http.client.HTTPConnection, rows: int = 1) -> None:
    sent = [[n, 2, 3, 4] for n in range(rows)]
    connection.request("POST", "/predict/echo", json.dumps(sent), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, [row["y"] for row in json.loads(answer.read())]) == (200, sent)


def test_https(server: Server, place: Path) -> None:
    with closing(server.connection()) as kept, closing(server.connection()) as new:
        for rows in (1, 1, 2, 1000, 1):  # the second has a head that is known, the fourth a body that comes in parts
            ask(kept, rows)
        assert shown(kept) == "first"
        last = server.get("/v2", {"Connection": "close"})
        assert (last.status, last.closes) == (200, True)

        with server.socket() as plain:  # HTTP where HTTPS is spoken
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            assert not plain.recv(1000).startswith(b"HTTP")

        for name in ("key", "pem"):
            shutil.copyfile(CERTIFICATES / f"second.{name}", place / f"tls.{name}")
        server.line("tls_cert .* read again")
        ask(new)
        ask(kept)
        assert (shown(new), shown(kept)) == ("second", "first")
        server.tell(signal.SIGINT)
        assert server.ended() == 0
    server.stop()
    assert not [line for line in server.lines if "graceful" in line]  # no connection was waited for to the limit
