"""The routes of the live page: its files, which need no key, and its event stream, which does.

State: `hub` (Hub) of the lifespan. Links between the files are relative, so that they work under a prefix.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import cast

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from app.http.static_files import ASK_AGAIN, add_file
from app.ui.hub import Hub, Watcher

_FOLDER = Path(__file__).parent / "static"
#: Forbids other hosts, inline scripts and styles, and frames, so that names of models cannot inject code.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer", "cache-control": ASK_AGAIN}
_PATIENCE_S = 30.0  # after which a stream ends whose page reads nothing


class Page:
    """`router` has all routes under /ui, which OpenAPI does not document.

    `open_paths` need no key: the page itself asks the user for it.
    """

    def __init__(self) -> None:
        self.router = APIRouter(include_in_schema=False)
        self.router.add_api_route("/ui/", _slash)
        self.router.add_api_route("/ui/events", _events)
        files = {f"/ui/{file.name}": file for file in sorted(_FOLDER.iterdir())}
        add_file(self.router, "/ui", files.pop("/ui/index.html"), _HEADERS)
        for path, file in files.items():
            add_file(self.router, path, file, _HEADERS)
        self.open_paths = frozenset({"/ui", "/ui/", *files})


async def _slash() -> Response:
    """Redirect to /ui: relative links would be wrong under /ui/."""
    return Response(status_code=307, headers={"Location": "../ui"})


async def _events(request: Request) -> Response:
    return EventStream(cast(Hub, request.state.hub))


class EventStream(Response):
    """Server-sent events, until the client disconnects or reads nothing for too long, or the server stops.

    Raises what `Hub.watching` raises, before anything is sent.
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
                    while (message := await watcher.next()) is not None:
                        async with asyncio.timeout(_PATIENCE_S):
                            await send({"type": "http.response.body", "body": message, "more_body": True})
            finally:
                gone.cancel()
        await send({"type": "http.response.body", "body": b""})  # by now another page may watch in its place


async def _until_gone(receive: Receive, watcher: Watcher) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.end()
