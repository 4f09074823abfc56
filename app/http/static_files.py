"""Static files of the package, for /docs and /ui: with ETag, gzip and a fixed content type.

Each file is read on a thread at its first request. Only files that were added are served, never a whole folder.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from app.http.answers import compress, wanted_encoding

ASK_AGAIN = "no-cache"  # browsers may cache it, but must revalidate it each time
KEEP = "public, max-age=86400"  # for files that only change with a release
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}


class StaticContent(NamedTuple):
    """A body as it is and gzipped, and its ETag."""

    body: bytes
    gzipped: bytes
    etag: str


def static_content(body: bytes) -> StaticContent:
    """Compresses: call it on a thread."""
    return StaticContent(body, compress(body, "gzip"), f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def add_file(router: APIRouter, path: str, file: Path, headers: Mapping[str, str]) -> None:
    """Serve one file at `path`; its suffix decides its type."""
    read = cache(lambda: static_content(file.read_bytes()))
    all_headers = {**headers, "content-type": _TYPES[file.suffix]}

    async def get(request: Request) -> Response:
        return respond_static(request, await asyncio.to_thread(read), all_headers)

    router.add_api_route(path, get, methods=["GET", "HEAD"], include_in_schema=False)


def respond_static(request: Request, found: StaticContent, headers: Mapping[str, str]) -> Response:
    """The content, or 304 if the client has it already."""
    sent = {**headers, "etag": found.etag, "x-content-type-options": "nosniff", "vary": "accept-encoding"}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    encoding = wanted_encoding(request.headers.get("accept-encoding", "").encode("latin-1"), len(found.body))
    if encoding != "gzip":
        return Response(found.body, headers=sent)
    return Response(found.gzipped, headers={**sent, "content-encoding": "gzip"})
