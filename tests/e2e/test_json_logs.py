"""With JSON logs every line of the log is an entry, from the first to the last; what models print is left as it is."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from .server import Server
from .wire import TYPED, tensor

FLAGS = ("--log-format", "json", "--access-log", "--model-control")
MINE = {**TYPED, "X-Request-ID": "mine"}


def parsed(line: str) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(line)
    assert datetime.fromisoformat(entry["time"]).tzinfo is not None
    assert entry["level"] in ("info", "warning", "error")
    assert entry["logger"]
    assert isinstance(entry["message"], str)
    return entry


def test_every_line_of_a_server(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not load, one that prints, one that fails, loading, unloading, probes, and a Ctrl-C."""
    monkeypatch.setenv("PYTHONWARNINGS", "always")
    server = start("broken", "marked", "scaled", "talking", flags=FLAGS, fresh=True)
    for model, body, status in (
        ("scaled", tensor(1, 1, [1]), 200), ("scaled", b"{", 400), ("marked", tensor(1, 2, [-1, 1]), 500),
        ("talking", tensor(1, 1, [1]), 200),
    ):  # fmt: skip
        assert server.post(f"/v2/models/{model}/infer", body, MINE).status == status
    for model, step, status in (("scaled", "unload", 200), ("scaled", "load", 200), ("broken", "load", 400)):
        assert server.post(f"/v2/repository/models/{model}/{step}").status == status
    assert server.get("/livez").status == 200
    server.tell(signal.SIGINT)
    assert server.ended() == 0
    server.stop()
    entries = [parsed(line) for line in server.lines if line.startswith("{")]
    printed = {line for line in server.lines if line and not line.startswith("{")}
    assert printed <= {"loaded with print: on import", "running", "half a line, and the rest"}

    assert entries[0]["settings"]["log_format"] == "json"
    told = {(entry["logger"], entry["level"], entry["message"].partition(":")[0]) for entry in entries}
    assert told >= {
        ("py.warnings", "warning", str(server.repository / "talking" / "model.py")),
        ("starling.http", "warning", "model marked version 1, request mine"),
        ("starling.models", "error", "model broken version 1"),
        ("starling.server", "info", "SIGINT"),
        ("starling.http", "info", "model scaled"),
    }
    uncaught = [entry for entry in entries if "where nobody catches it" in entry["message"]]
    assert ["talker" in entry["message"] for entry in uncaught] == [True, False]
    assert all("in raises" in entry["traceback"] and entry["level"] == "error" for entry in uncaught)
    (traceback,) = [entry["traceback"] for entry in entries if entry["message"].startswith("model marked version 1, ")]
    assert "marked/model.py" in traceback
    (ready,) = [entry for entry in entries if "serving" in entry]
    assert (ready["serving"], ready["models"], ready["url"]) == (3, 4, f"http://{server.host}")
    lines = [entry for entry in entries if entry["logger"] == "starling.access" and entry["path"].endswith("/infer")]
    assert [(line["model"], line["status"], line["request_id"]) for line in lines] == [
        ("scaled", 200, "mine"), ("scaled", 400, "mine"), ("marked", 500, "mine"), ("talking", 200, "mine"),
    ]  # fmt: skip
