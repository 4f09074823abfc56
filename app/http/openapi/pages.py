"""/docs and /openapi.json. The page's files are part of the package, so that it works where no other host is reached.

Swagger UI is in `static/swagger-ui/`, as it was published, with its licence. The page is `static/docs.html`, whose
paths are relative: they hold under any prefix. Its policy forbids the browser to ask anybody else for anything.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, Request, Response

from app.http.openapi.document import Document
from app.http.routes.metadata import catalog_of
from app.http.static_files import ASK_AGAIN, KEEP, add_file, respond_static

_STATIC = Path(__file__).parent / "static"
#: What a path under /docs/ gives. Nothing else of the folder is served.
_FILES = {
    path.rpartition("/")[2]: path
    for path in (
        "docs.js", "swagger-ui/swagger-ui-bundle.js", "swagger-ui/swagger-ui.css", "swagger-ui/favicon-32x32.png",
    )
}  # fmt: skip
#: They need no key: a browser that opens a page has none to send.
OPEN_PATHS = frozenset({"/docs", "/docs/", "/openapi.json", *(f"/docs/{name}" for name in _FILES)})
#: Styles and pictures of Swagger UI's own stand in its style sheet and on its elements.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def docs_router(document: Document) -> APIRouter:
    """The page, its files, and the document that it shows."""
    router = APIRouter()

    async def openapi(request: Request) -> Response:
        found = await asyncio.to_thread(document.content, list(catalog_of(request).ready()))
        return respond_static(request, found, {"content-type": "application/json", "cache-control": ASK_AGAIN})

    router.add_api_route("/openapi.json", openapi, methods=["GET", "HEAD"], include_in_schema=False)
    add_file(router, "/docs", _STATIC / "docs.html", {"cache-control": ASK_AGAIN, "content-security-policy": _POLICY})
    for name, path in _FILES.items():
        add_file(router, f"/docs/{name}", _STATIC / path, {"cache-control": KEEP})
    return router
