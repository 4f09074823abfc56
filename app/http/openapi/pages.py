"""The routes /docs and /openapi.json. All files of the page are in the package, so it works without other hosts.

`static/swagger-ui/` is Swagger UI as published, with its licence. The page is `static/docs.html`; its links are
relative, so they work under any prefix. Its content security policy forbids requests to other hosts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, Request, Response

from app.http.openapi.document import Document
from app.http.routes.metadata import catalog_of
from app.http.static_files import ASK_AGAIN, KEEP, add_file, respond_static

_STATIC = Path(__file__).parent / "static"
#: The files under /docs/ by name. Nothing else of the folder is served.
_FILES = {
    path.rpartition("/")[2]: path
    for path in (
        "docs.js", "swagger-ui/swagger-ui-bundle.js", "swagger-ui/swagger-ui.css", "swagger-ui/favicon-32x32.png",
    )
}  # fmt: skip
#: These need no key: a browser that opens a page has none to send.
OPEN_PATHS = frozenset({"/docs", "/docs/", "/openapi.json", *(f"/docs/{name}" for name in _FILES)})
#: Swagger UI has inline styles, and pictures and fonts as data URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def docs_router(document: Document) -> APIRouter:
    """The routes of the page, of its files, and of the document that it shows."""
    router = APIRouter()

    async def openapi(request: Request) -> Response:
        found = await asyncio.to_thread(document.content, list(catalog_of(request).ready()))
        return respond_static(request, found, {"content-type": "application/json", "cache-control": ASK_AGAIN})

    router.add_api_route("/openapi.json", openapi, methods=["GET", "HEAD"], include_in_schema=False)
    add_file(router, "/docs", _STATIC / "docs.html", {"cache-control": ASK_AGAIN, "content-security-policy": _POLICY})
    for name, path in _FILES.items():
        add_file(router, f"/docs/{name}", _STATIC / path, {"cache-control": KEEP})
    return router
