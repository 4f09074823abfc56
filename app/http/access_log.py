"""The access log, one line per HTTP request."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from app.http.body import ASGIApp, Message, Receive, Scope, Send
from app.http.connection.uvicorn_fixes import BAD_FRAMES
from app.observe.logs import ACCESS, fields

log = logging.getLogger(ACCESS)

_GONE = 499  # the client has left: the status of ClientGone
_LONGEST_PATH = 2048  # characters: a client may send more


def write_line(
    method: str,
    path: bytes,
    status: int,
    arrived: int,
    client: tuple[str, int] | None,
    request_id: bytes,
    call: Mapping[str, object] | None = None,
) -> None:
    """One line. `path` is as the client sent it, without its query; `arrived`: monotonic nanoseconds."""
    shown = path[:_LONGEST_PATH].decode("ascii", "backslashreplace")
    duration_ms = round((time.monotonic_ns() - arrived) / 1e6, 3)
    line = {
        "method": method, "path": shown, "status": status, "duration_ms": duration_ms,
        "request_id": request_id.decode(), "client": _address(client), **(call or {}),
    }  # fmt: skip
    log.info("%s %s %d", method, shown, status, **fields(**line))


def _address(client: tuple[str, int] | None) -> str:
    """As in a URL; "" where the client has left before it was asked for."""
    if client is None:
        return ""
    host, port = client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def log_request(app: ASGIApp, request_id: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """Let `app` answer a request that is not an inference call, then write its line."""
    arrived = time.monotonic_ns()
    status = _GONE

    async def watched(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await app(scope, receive, watched)
    finally:
        path = scope.get("raw_path") or scope["path"].encode()
        write_line(scope["method"], path, scope.get(BAD_FRAMES, status), arrived, scope.get("client"), request_id)
