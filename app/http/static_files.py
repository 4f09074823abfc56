"""Files of the package that browsers get, for /docs and /ui: kept and asked for again, compressed, never guessed.

A file is read when it is first asked for, on a thread. Nothing else of a folder is served than what is added here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from app.http.answers import compress, wanted_encoding

ASK_AGAIN = "no-cache"  # keep, but ask whether it is still the same
KEEP = "public, max-age=86400"  # files of a release
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}


class StaticContent(NamedTuple):
    """What is sent to whoever asks: as it is, by gzip, and what it is known by."""

    body: bytes
    gzipped: bytes
    etag: str


def static_content(body: bytes) -> StaticContent:
    """Compresses: not for the event loop."""
    return StaticContent(body, compress(body, "gzip"), f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def add_file(
    router: APIRouter,
    path: str,
    file: Path,
    headers: Mapping[str, str],
    edit: Callable[[bytes], bytes] = lambda body: body,
) -> None:
    """Serve one file at `path`, with its type by its suffix. `edit` is what is done to it before it is sent."""
    read = cache(lambda: static_content(edit(file.read_bytes())))
    all_headers = {**headers, "content-type": _TYPES[file.suffix]}

    async def get(request: Request) -> Response:
        return respond_static(request, await asyncio.to_thread(read), all_headers)

    router.add_api_route(path, get, methods=["GET", "HEAD"], include_in_schema=False)


def respond_static(request: Request, found: StaticContent, headers: Mapping[str, str]) -> Response:
    """What was asked for, or 304 where the client has it already."""
    sent = {**headers, "etag": found.etag, "x-content-type-options": "nosniff", "vary": "accept-encoding"}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    encoding = wanted_encoding(request.headers.get("accept-encoding", "").encode("latin-1"), len(found.body))
    if encoding != "gzip":
        return Response(found.body, headers=sent)
    return Response(found.gzipped, headers={**sent, "content-encoding": "gzip"})
