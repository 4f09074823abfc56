"""The routes of the live page: its files, which need no key, and its event stream, which does.

State: `hub` (Hub) of the lifespan. Links between the files are relative, so that they work under a prefix.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.http.static_files import ASK_AGAIN, add_file
from app.ui.hub import Hub, Watcher

_FOLDER, _PAGE = Path(__file__).parent / "static", "index.html"
#: Forbids other hosts, inline scripts and styles, and frames, so that names of models cannot inject code.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer", "cache-control": ASK_AGAIN}
_FILES = {f"/ui/{file.name}": file for file in sorted(_FOLDER.iterdir()) if file.name != _PAGE}
#: These need no key: the page itself asks the user for it.
OPEN_PATHS = frozenset({"/ui", "/ui/", *_FILES})

#: All routes under /ui, which OpenAPI does not document.
router = APIRouter(include_in_schema=False)
add_file(router, "/ui", _FOLDER / _PAGE, _HEADERS)
for _path, _file in _FILES.items():
    add_file(router, _path, _file, _HEADERS)


@router.get("/ui/")
async def slash() -> Response:
    """Redirect to /ui: relative links would be wrong under /ui/."""
    return Response(status_code=307, headers={"Location": "../ui"})


@router.get("/ui/events")
async def events(request: Request) -> Response:
    return EventStream(cast(Hub, request.state.hub))


class EventStream(StreamingResponse):
    """Server-sent events, until the client disconnects or the server stops.

    Raises what `Hub.watching` raises, before anything is sent.
    """

    def __init__(self, hub: Hub) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__((), headers=headers, media_type="text/event-stream")
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.watching() as watcher:
            self.body_iterator = _messages(watcher)
            await super().__call__(scope, receive, send)


async def _messages(watcher: Watcher) -> AsyncIterator[bytes]:
    while (message := await watcher.next()) is not None:
        yield message
