"""Hooks of the documentation site: its first page is the README, and files that are no pages are named, not linked."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """The README as the first page."""
    readme = posixpath.join(posixpath.dirname(config.config_file_path), "README.md")
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    files.append(File.generated(config, "index.md", content=_from_the_top(text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that lead out of the documentation become the name of what they lead to."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path = target.partition("#")[0]
        if not path or "://" in target:
            return match[0]
        inside = posixpath.normpath(posixpath.join(folder, path))
        if files.get_file_from_path(inside) is not None:
            return match[0]
        name = posixpath.normpath(posixpath.join("docs", inside))
        return match[0] if mark else f"{text} (`{name}`)"

    return _LINK.sub(replaced, markdown)


def _from_the_top(text: str) -> str:
    """The README's links, which begin at the top of the repository, as links of a page in docs/."""
    return _LINK.sub(lambda match: f"{match[1]}[{match[2]}]({_seen_from_docs(match[3])})", text)


def _seen_from_docs(target: str) -> str:
    if "://" in target or target.startswith("#"):
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
