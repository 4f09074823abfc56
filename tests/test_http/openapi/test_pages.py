"""The page and its files: in the package, kept by browsers, compressed, and nothing else of the disk."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.http.openapi.document import OPEN_PATHS, Document, docs_router

from ..catalog import FakeCatalog, client
from .test_document import MODELS, make_app

STATIC = Path(__file__).parents[3] / "app" / "http" / "openapi" / "static"


@pytest.fixture
def catalog() -> FakeCatalog:
    return FakeCatalog({"echo": {"1": MODELS["echo"]}})


@pytest.fixture
async def http(catalog: FakeCatalog) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app()
    app.include_router(docs_router(Document()))
    async with client(app, catalog=catalog) as opened:
        yield opened


@pytest.mark.parametrize("path", sorted(OPEN_PATHS - {"/docs/"}))
async def test_each_is_kept_and_asked_for_again(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path, headers={"Accept-Encoding": "identity"})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == ("public, max-age=86400" if "/docs/" in path else "no-cache")
    again = await http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", answer.headers["etag"])
    packed = await http.get(path, headers={"Accept-Encoding": "gzip"})
    assert packed.content == answer.content  # the client has decompressed it
    assert ("content-encoding" in packed.headers) == (len(answer.content) >= 1024)
    head = await http.head(path, headers={"Accept-Encoding": "identity"})
    assert head.headers["content-length"] == str(len(answer.content))


async def test_the_page_asks_nobody_else(http: httpx.AsyncClient) -> None:
    """What it names is below it, wherever that is; its policy forbids all other hosts."""
    page = await http.get("/docs")
    named = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert {f"/{path}" for path in named} <= OPEN_PATHS
    assert len(named) == 5
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_the_files_have_their_licence_with_them() -> None:
    """That all are packaged is in tests/test_distributions.py."""
    names = {path.name for path in STATIC.rglob("*")}
    assert {"LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"} <= names
    assert "Apache License" in (STATIC / "swagger-ui" / "LICENSE").read_text(encoding="utf-8")
