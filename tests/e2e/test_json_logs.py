"""With JSON logs every line of the log is an entry, from the first to the last; what models print is left as it is."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from .server import PATIENCE_S, Server
from .wire import TYPED, tensor

FLAGS = ("--log-format", "json", "--access-log", "--model-control")
INFER = "/v2/models/%s/infer"


def parsed(lines: list[str]) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        assert datetime.fromisoformat(entry["time"]).tzinfo is not None
        assert entry["level"] in ("info", "warning", "error")
        assert entry["logger"]
        assert isinstance(entry["message"], str)
    return entries


def refused_chunks(server: Server, path: str) -> bytes:
    """The answer to a body whose chunks cannot be told apart."""
    host, _, port = server.host.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nX-Request-ID: mine\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head.encode() + b"2\r\n[1\r\nnone\r\n")
        return client.makefile("rb").read()


def test_every_line_of_a_server(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not load, one that prints, one that fails, loading, unloading, probes, and a Ctrl-C."""
    monkeypatch.setenv("PYTHONWARNINGS", "always")
    server = start("broken", "marked", "scaled", "talking", flags=FLAGS, fresh=True)
    sent = tensor(1, 1, [1])
    mine = {**TYPED, "X-Request-ID": "mine"}
    assert server.post(INFER % "scaled", sent, mine).status == 200
    assert server.post(INFER % "scaled", b"{", mine).status == 400
    assert server.post(INFER % "marked", tensor(1, 2, [-1, 1]), mine).status == 500
    assert server.post(INFER % "talking", sent, mine).status == 200
    for step in ("unload", "load"):
        assert server.post(f"/v2/repository/models/scaled/{step}").status == 200
    assert server.post("/v2/repository/models/broken/load").status == 400
    assert server.get("/livez").status == 200
    for path in (INFER % "scaled", "/v2/repository/index"):
        assert refused_chunks(server, path).startswith(b"HTTP/1.1 400 ")
    server.tell(signal.SIGINT)
    assert server.ended() == 0
    server.stop()
    written = [line for line in server.lines if line]
    entries = parsed([line for line in written if line.startswith("{")])
    printed = {line for line in written if not line.startswith("{")}
    assert printed <= {"loaded with print: on import", "running", "half a line, and the rest"}

    begins, *_ = entries
    assert begins["settings"]["log_format"] == "json"
    told = {(entry["logger"], entry["level"], entry["message"].partition(":")[0]) for entry in entries}
    for expected in (
        ("py.warnings", "warning", str(server.repository / "talking" / "model.py")),
        ("starling.http", "warning", "model marked version 1, request mine"),
        ("starling.models", "error", "model broken version 1"),
        ("starling.server", "info", "SIGINT"),
        ("starling.http", "info", "model scaled"),
    ):
        assert expected in told
    (failed,) = [entry for entry in entries if entry["logger"] == "starling.http" and entry["level"] == "warning"]
    assert "marked/model.py" in failed["traceback"]
    (ready,) = [entry for entry in entries if "serving" in entry]
    assert (ready["serving"], ready["models"], ready["url"]) == (3, 4, f"http://{server.host}")
    lines = [entry for entry in entries if entry["logger"] == "starling.access" and entry["path"].endswith("/infer")]
    assert [(line["model"], line["status"], line["request_id"]) for line in lines] == [
        ("scaled", 200, "mine"), ("scaled", 400, "mine"), ("marked", 500, "mine"), ("talking", 200, "mine"),
        ("scaled", 400, "mine"),
    ]  # fmt: skip
    (index,) = [entry for entry in entries if entry["logger"] == "starling.access" and entry["path"].endswith("/index")]
    assert index["status"] == 400  # as the client was told, not 499
