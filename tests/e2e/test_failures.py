"""Errors of FastAPI's routes have the form of all others; a model's own are logged once; many at once leave nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from .mistakes import ECHO, MISTAKES
from .server import Server


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/v2/models/nobody", 404, None),
        ("POST", "/v2/health/live", 405, "GET, HEAD"),
        ("GET", "/v2/repository/index", 405, "POST"),
        ("GET", f"/v2/models/{'a' * 30_000}", 404, None),
        ("GET", "/v2/models/%ff%fe/ready", 404, None),
        ("POST", "/v2/repository/models/a%00b/load", 404, None),
    ],
)
def test_errors_have_one_form(server: Server, method: str, path: str, status: int, allow: str | None) -> None:
    answer = server.request(method, path, b"{}" if method == "POST" else None)
    assert (answer.status, answer.headers.get("allow")) == (status, allow)
    assert answer.headers["content-type"] == "application/json"
    assert 0 < len(answer.error) < 5000


def test_a_model_that_fails_is_logged_once(start: Callable[..., Server]) -> None:
    """With the first request's id, and a traceback that begins in the model's own file."""
    server = start("marked", "narrow")
    for number in range(5):
        assert server.infer("marked", [[-1, number]], {"X-Request-ID": f"r-{number}"}).status == 500
    assert server.infer("narrow", [[1]]).status == 200
    assert server.stop() == 0  # after which all its lines have been read
    (line,) = [number for number, line in enumerate(server.lines) if "WARNING" in line or "ERROR" in line]
    assert "WARNING starling.http: model marked version 1, request r-0: " in server.lines[line]
    assert server.lines[line + 1] == "  Traceback (most recent call last):"
    assert "marked/model.py" in server.lines[line + 2]


def test_many_wrong_bodies_at_once(server: Server, threads: ThreadPoolExecutor) -> None:
    wrong = [(path, headers, body, status) for path, headers, body, status, _ in MISTAKES] * 4
    statuses = list(threads.map(lambda one: server.post(one[0], one[2], one[1]).status, wrong))
    assert statuses == [status for *_, status in wrong]
    nested = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert server.post(ECHO, nested).status == 400
    assert server.infer("echo", [[1, 2, 3, 4]]).json()["outputs"][0]["data"] == [1, 2, 3, 4]
    assert (server.slots("echo"), server.slots("marked")) == (0, 0)
    assert [line for line in server.lines if "unexpected error" in line] == []
