"""The documentation builds as a site without a warning, and its pages load nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="`make test-more` installs mkdocs-material")

ROOT = Path(__file__).resolve().parent.parent
#: What a browser fetches by itself, other than links that a reader follows.
FETCHED = re.compile(
    r"""<(?:script|img|source|iframe)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*\shref=["']?(https?:)?//"""
)
IMPORTED = re.compile(r"""(?:url\(|@import )["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.relative_to(site) for path in site.rglob("*.html")} == {*pages, Path("index.html"), Path("404.html")}


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not IMPORTED.search(style.read_text(encoding="utf-8")), style


def test_links_that_leave_the_documentation_are_names(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    assert "it (<code>app/scheduler/scheduler.py</code>)" in first
    assert 'href="papers/reef.html"' in first
    for page in site.rglob("*.html"):
        if page.name != "404.html":  # which is shown for any address
            inside = re.findall(r'href="(?!https?:)([^"#]+)', page.read_text(encoding="utf-8"))
            assert not [link for link in inside if not (page.parent / link).exists()], page
