"""The page's files open without a key and take nothing from elsewhere; its events need the key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lifespan import serving, with_state

from app.main import create_app
from app.settings import Settings
from app.ui.hub import Watcher
from app.ui.page import _FOLDER, OPEN_PATHS, EventStream

FILES = sorted(path.name for path in _FOLDER.iterdir())
KEY = "sesame"


def made(folder: Path, **settings: Any) -> Any:
    """A server without models, and with a key."""
    (folder / "models").mkdir(exist_ok=True)
    given = {"models": str(folder / "models"), "model_control": True, "profile_dir": folder, "api_key": KEY}
    return create_app(Settings(**given, **settings))


async def test_the_page_opens_without_a_key(tmp_path: Path) -> None:
    async with serving(made(tmp_path)) as (http, _):
        for name in FILES:
            answer = await http.get("/ui" if name == "index.html" else f"/ui/{name}")
            assert answer.status_code == 200
            assert answer.content == (_FOLDER / name).read_bytes()
            assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await http.get(answer.url.path, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("prefix", ["", "/a/b"])
async def test_a_browser_is_sent_to_the_page_and_a_program_asks_whether_the_server_lives(tmp_path, prefix: str) -> None:
    async with serving(made(tmp_path, root_path=prefix)) as (client, _):
        answer = await client.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
        assert (answer.status_code, answer.headers["location"]) == (307, f"{prefix}/ui" if prefix else "ui")
        for accepted in ("*/*", "application/json"):
            answer = await client.get("/", headers={"Accept": accepted})
            assert (answer.status_code, answer.json()) == (200, {"status": "alive"})  # V1's liveness


async def test_an_ingress_may_leave_its_prefix_on(tmp_path: Path) -> None:
    """The page and its files need no key either way; its events do."""
    async with serving(made(tmp_path, root_path="/a/b")) as (client, _):
        for prefix in ("", "/a/b"):
            for path in (*sorted(OPEN_PATHS - {"/ui/"}), "/docs"):
                assert (await client.get(prefix + path)).status_code == 200, prefix + path
            slash = await client.get(f"{prefix}/ui/")
            assert slash.next_request is not None
            assert slash.next_request.url.path == f"{prefix}/ui"
            for path in ("/ui/events", "/v2/models"):
                assert (await client.get(prefix + path)).status_code == 401


def test_nothing_comes_from_another_host() -> None:
    for name in FILES:
        text = (_FOLDER / name).read_text(encoding="utf-8")
        hosts = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+", text))
        assert hosts <= {"https://github.com", "http://www.w3.org"}, name  # uPlot's first comment; SVG's name space


def test_what_a_server_says_is_never_markup() -> None:
    for name in FILES:
        if name.endswith(".js") and not name.startswith("uplot"):
            text = (_FOLDER / name).read_text(encoding="utf-8")
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
    page = (_FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|style=|<script>|<style>", page)


async def test_events_come_until_the_client_goes(tmp_path: Path) -> None:
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    gone = asyncio.Event()
    asked = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "path": "/ui/events", "raw_path": b"/ui/events", "query_string": b"", "root_path": "", "scheme": "http",
        "headers": [(b"x-api-key", KEY.encode())], "server": ("one", 80), "client": ("two", 1),
    }  # fmt: skip
    app = made(tmp_path)
    async with serving(app) as (_, state):
        task = asyncio.create_task(with_state(app, state)(scope, receive, sent.put))
        start = await sent.get()
        assert start["status"] == 200
        assert (b"content-type", b"text/event-stream; charset=utf-8") in start["headers"]
        found = [(await sent.get())["body"].split(b"\n")[0] for _ in range(5)]
        assert found == [f"event: {name}".encode() for name in ("hello", "history", "models", "tick", "tick")]
        gone.set()
        await asyncio.wait_for(task, 5)


async def test_a_page_that_reads_nothing_leaves_its_place_with_its_connection() -> None:
    """Which the server closes: see test_a_client_that_does_not_read_its_answers_is_cut."""
    left, gone, writes = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @contextmanager
    def watching() -> Iterator[Watcher]:
        watcher = Watcher()
        watcher.send(b"hello")
        yield watcher
        left.set()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            writes.set()
            await asyncio.Event().wait()

    stream: Any = EventStream(SimpleNamespace(watching=watching))  # type: ignore[arg-type]
    task = asyncio.create_task(stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send))
    await writes.wait()
    assert not left.is_set()
    gone.set()
    await asyncio.wait_for(task, 5)
    assert left.is_set()
