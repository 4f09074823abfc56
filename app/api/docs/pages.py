"""/docs and /openapi.json. The page's files are part of the package, so that it works where no other host is reached.

Swagger UI stands in `static/swagger-ui/`, as it was published, with its licence. The page is `static/docs.html`, whose
paths are relative: they hold under any prefix. Its policy forbids the browser to ask anybody else for anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from app.api.docs.document import Document, Written, written
from app.api.http import wanted_encoding
from app.api.routes.metadata import catalog_of

_STATIC = Path(__file__).parent / "static"
#: What a path under /docs/ gives: the file and its type. Nothing else of the folder is served.
_FILES = {
    "docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "swagger-ui-bundle.js": ("swagger-ui/swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
    "swagger-ui.css": ("swagger-ui/swagger-ui.css", "text/css; charset=utf-8"),
    "favicon-32x32.png": ("swagger-ui/favicon-32x32.png", "image/png"),
}
_PAGE = ("docs.html", "text/html; charset=utf-8")
#: They need no key: a browser that opens a page has none to send.
OPEN_PATHS = frozenset({"/docs", "/docs/", "/openapi.json", *(f"/docs/{name}" for name in _FILES)})
#: Styles and pictures of Swagger UI's own stand in its style sheet and on its elements.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_ASK_AGAIN = "no-cache"  # keep, but ask whether it is still the same
_KEEP = "public, max-age=86400"  # files of a release


@cache
def _file(path: str) -> Written:
    """A file of the package. Reads and compresses: not for the event loop."""
    return written((_STATIC / path).read_bytes())


def docs_router(document: Document) -> APIRouter:
    """The page, its files, and the document that it shows."""
    router = APIRouter()

    async def openapi(request: Request) -> Response:
        catalog = catalog_of(request)
        found = document.known(catalog)
        if found is None:
            found = await asyncio.to_thread(document.write, list(catalog.ready()))
        return _answer(request, found, {"content-type": "application/json", "cache-control": _ASK_AGAIN})

    async def page(request: Request) -> Response:
        path, media = _PAGE
        headers = {"content-type": media, "cache-control": _ASK_AGAIN, "content-security-policy": _POLICY}
        return _answer(request, await asyncio.to_thread(_file, path), headers)

    for path, endpoint in (("/openapi.json", openapi), ("/docs", page)):
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
    for name, (path, media) in _FILES.items():
        router.add_api_route(f"/docs/{name}", _giving(path, media), methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _giving(path: str, media: str) -> Callable[[Request], Awaitable[Response]]:
    async def static(request: Request) -> Response:
        found = await asyncio.to_thread(_file, path)
        return _answer(request, found, {"content-type": media, "cache-control": _KEEP})

    return static


def _answer(request: Request, found: Written, headers: dict[str, str]) -> Response:
    headers = {**headers, "etag": found.etag, "x-content-type-options": "nosniff", "vary": "accept-encoding"}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    encoding = wanted_encoding(request.headers.get("accept-encoding", "").encode("latin-1"), len(found.body))
    if encoding != "gzip":
        return Response(found.body, headers=headers)
    return Response(found.packed, headers={**headers, "content-encoding": "gzip"})
