"""Probes: the same answer under every name, with the reason where it is no, and to HEAD without a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
from connections import Connection
from fastapi import FastAPI

from app.contract import IndexEntry
from app.http.errors import install_error_handlers
from app.http.routes import probes
from app.lifecycle import Lifecycle

from ..catalog import FakeCatalog, client

LIVE = ["/v2/health/live", "/livez", "/healthz"]
READY = ["/v2/health/ready", "/readyz", "/ping", "/health"]


def probes_app() -> FastAPI:
    app = FastAPI()
    app.include_router(probes.router)
    install_error_handlers(app, Counter())
    return app


@pytest.fixture
def health() -> Lifecycle:
    """Of a server with one model, which is ready."""
    found = Lifecycle()
    found.catalog = FakeCatalog({}, [IndexEntry("a", "1", "UNTRIED", "it raises", required=True)])  # type: ignore[assignment]
    return found


@pytest.fixture
async def http(health: Lifecycle) -> AsyncIterator[httpx.AsyncClient]:
    async with client(probes_app(), health=health) as opened:
        yield opened


@pytest.mark.parametrize("why", [None, "a: loading; b: failed: no such file"])
@pytest.mark.parametrize(("path", "word"), [(path, "live") for path in LIVE] + [(path, "ready") for path in READY])
async def test_a_probe_says_why_it_fails_and_head_is_get_without_a_body(
    http: httpx.AsyncClient, health: Lifecycle, path: str, word: str, why: str | None
) -> None:
    health.failed = why
    answer, headed = await http.get(path), await http.head(path)
    status = 503 if why else 200
    assert (answer.status_code, answer.json()) == (status, {word: not why, **({"reason": why} if why else {})})
    assert (headed.status_code, headed.headers) == (status, answer.headers)
    assert (await http.options(path)).json() == answer.json()
    assert answer.headers.get("retry-after") == ("1" if word == "ready" and why else None)
    connection = Connection(probes_app(), state={"health": health})  # httpx would hide a body
    connection.send(b"HEAD %s HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
    await connection.done()
    head, rest = connection.transport.written.split(b"\r\n\r\n")
    assert (head[:12], rest) == (b"HTTP/1.1 %d" % status, b"")


async def test_verbose_readiness_has_the_lines_of_the_index(http: httpx.AsyncClient, health: Lifecycle) -> None:
    lines = [{"name": "a", "version": "1", "state": "UNTRIED", "reason": "it raises"}]
    assert (await http.get("/readyz?verbose")).json() == {"ready": True, "models": lines}
    health.stuck = lambda: "hung"
    assert (await http.get("/readyz?verbose=1")).json() == {"ready": False, "reason": "hung", "models": lines}


async def test_other_methods(http: httpx.AsyncClient) -> None:
    answer = await http.post("/livez")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert answer.json() == {"error": "POST is not allowed on /livez"}
