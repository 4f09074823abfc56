"""The prefix of an ingress, taken off or left on, and redirects that name neither scheme nor host."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest
from fastapi import FastAPI

from app.http.asgi import HttpApp
from app.http.auth import Auth
from app.http.errors import install_error_handlers
from app.http.paths import path_redirect, strip_prefix
from app.http.resources import Resources
from app.http.routes import control
from app.lifecycle import Lifecycle

from .catalog import KEY, LOCKED, FakeCatalog, client
from .echo import LIMITS, MakeCaller


@pytest.mark.parametrize(
    ("prefix", "path", "found"),
    [
        ("", "/v2", "/v2"),
        ("/a", "/a/v2", "/v2"),
        ("/a", "/v2", "/v2"),
        ("/a", "/a", "/"),
        ("/a", "/ab/v2", "/ab/v2"),
    ],
)
def test_a_path_without_the_prefix(prefix: str, path: str, found: str) -> None:
    assert strip_prefix(prefix, path) == found


@pytest.mark.parametrize("path", ["/predict/echo", "/a/b/predict/echo"])
async def test_both_ways_know_the_prefix(caller: MakeCaller, path: str) -> None:
    call = caller(root_path="/a/b", auth=LOCKED)
    for _ in range(2):  # the second time the path is known
        assert (await call(path, b"[0, 1, 2, 3]", KEY)).status == 200
    assert (await call(path, b"[0, 1, 2, 3]")).status == 401
    assert (await call("/a/predict/echo", b"[0]", KEY)).status == 299
    assert [(await call(f"{path}livez", method="GET")).status for path in ("/", "/a/b/")] == [299, 299]


@pytest.fixture
def http() -> httpx.AsyncClient:
    """A client of all plain routes under /a."""
    routes = FastAPI()
    routes.include_router(control.router)
    install_error_handlers(routes, Counter())
    app = HttpApp(routes, Resources(LIMITS, auth=Auth(), connections=lambda: 1, root_path="/a"))
    opened = client(app, catalog=FakeCatalog({}), health=Lifecycle())
    opened.base_url = httpx.URL("https://host.example")
    return opened


@pytest.mark.parametrize("asked", ["/a/v2/models/", "/v2/models/"])
async def test_redirects_keep_scheme_host_and_prefix(http: httpx.AsyncClient, asked: str) -> None:
    """The server itself speaks plain HTTP under another name; the ingress speaks HTTPS."""
    answer = await http.get(f"{asked}?x=1", headers={"Host": "10.0.0.7:8000"})
    assert (answer.status_code, answer.headers["location"]) == (307, "/a/v2/models?x=1")
    assert str(answer.next_request.url if answer.next_request else "") == "https://host.example/a/v2/models?x=1"
    followed = await http.get(answer.headers["location"])
    assert followed.json() == {"models": []}


@pytest.mark.parametrize("path", ["//elsewhere.example/", "/a//elsewhere.example/", "/a/nowhere/"])
async def test_nothing_redirects_elsewhere(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(f"https://host.example{path}")).status_code == 404


@pytest.mark.parametrize(
    ("location", "found"),
    [
        (b"http://h:1/p/q?r=s", b"/p/q?r=s"),
        (b"../p", b"../p"),
        (b"http://h//e.example/p", b"/e.example/p"),
    ],
)
def test_a_location_is_a_path(location: bytes, found: bytes) -> None:
    assert path_redirect(307, [(b"location", location)]) == [(b"location", found)]
    assert path_redirect(200, [(b"location", location)]) == [(b"location", location)]
