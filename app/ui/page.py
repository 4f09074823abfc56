"""The routes of the live page: its files, which need no key, and its events, which do.

State: `hub` (Hub) of the lifespan. Links between the files are relative, so that they work behind a prefix.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import cast

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from app.ui.hub import Hub, Watcher

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
#: Nothing from another host, nothing inline, and no frame around it: what a model is called or says is only data.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again with each visit, and answered 304 where nothing has changed
}
_PATIENCE_S = 30.0  # for a page that reads nothing


class Page:
    """The page's files, which are few and small: they are read here. `router` has all routes below /ui.

    The routes are no part of the documented interface. `open_paths` are those that need no key: the page asks for it.
    """

    def __init__(self) -> None:
        self.router = APIRouter(include_in_schema=False)
        self.router.add_api_route("/ui/", _slash)
        self.router.add_api_route("/ui/events", _events)
        self.open_paths = frozenset({"/ui/", *map(self._add, sorted(_FOLDER.iterdir()))})

    def _add(self, file: Path) -> str:
        """Serve one file; its path."""
        path = "/ui" if file.name == "index.html" else f"/ui/{file.name}"
        body = file.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {**_HEADERS, "ETag": tag, "Content-Type": _TYPES[file.suffix]}

        async def answer(request: Request) -> Response:
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers={**_HEADERS, "ETag": tag})
            return Response(body, headers=headers)

        self.router.add_api_route(path, answer)
        return path


async def _slash() -> Response:
    """Relative links would lead elsewhere from there."""
    return Response(status_code=307, headers={"Location": "../ui"})


async def _events(request: Request) -> Response:
    return EventStream(cast(Hub, request.state.hub))


class EventStream(Response):
    """Server-sent events, until the client goes or reads nothing for too long, or the server stops.

    Raises what `Hub.watching` does, before anything is sent.
    """

    media_type = "text/event-stream"

    def __init__(self, hub: Hub) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.watching() as watcher:
            gone = asyncio.create_task(_until_gone(receive, watcher), name="ui-disconnect")
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                with suppress(TimeoutError):
                    async for message in watcher:
                        async with asyncio.timeout(_PATIENCE_S):
                            await send({"type": "http.response.body", "body": message, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                gone.cancel()


async def _until_gone(receive: Receive, watcher: Watcher) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.end()
