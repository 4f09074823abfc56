"""Servers on threads beside a test, and what a test waits for."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
AnyServer = TypeVar("AnyServer", bound=HTTPServer)

_PAUSE_S = 0.02


def eventually(condition: Callable[[], T], patience_s: float = 20.0) -> T:
    """Ask until it is true, for what is shown only when asked; the answer. A server may not listen yet."""
    pause = threading.Event()
    for _ in range(round(patience_s / _PAUSE_S)):
        with suppress(ConnectionRefusedError):
            if found := condition():
                return found
        pause.wait(_PAUSE_S)
    raise AssertionError(f"not true in {patience_s} s")


def ended(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that has ended, within a minute."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


class QuietHandler(BaseHTTPRequestHandler):
    """Calls `get` or `post`, which call `answer`; logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """`headers`: with _ for -."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """It serves on a thread, and is closed in the end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(_PAUSE_S,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
