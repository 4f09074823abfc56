"""What paths mean: an ingress's prefix, and OpenAI's form of errors.

An ingress may strip its prefix (`--root-path`) from a path or leave it: both mean the same request. A redirect names
the path with the prefix but no scheme and host, so that the client keeps those that it used.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import Scope

from app.http.body import Headers


def has_openai_form(path: str) -> bool:
    """Whether errors of this path have OpenAI's form: all of /v1, but what KServe's V1 has there."""
    return path.startswith("/v1/") and not (path.startswith("/v1/models/") and (":" in path or "/versions/" in path))


def strip_prefix(prefix: str, path: str) -> str:
    """The path without the prefix, if it has it. `prefix` has no trailing slash; "" means none."""
    if not prefix or not path.startswith(prefix):
        return path
    rest = path[len(prefix) :]
    return rest if rest.startswith("/") else path if rest else "/"


def scope_under_prefix(prefix: str, scope: Scope, path: str) -> Scope:
    """The scope of a request for `path`, as ASGI wants it: the whole path, and `root_path` for the prefix."""
    return {**scope, "root_path": prefix, "path": prefix + path} if prefix else scope


def path_redirect(status: int, headers: Headers) -> Headers:
    """The headers, with scheme and host removed from the location of a redirect."""
    if not 301 <= status <= 308 or status == 304:
        return headers
    return [(name, _path_of(value) if name == b"location" else value) for name, value in headers]


def _path_of(location: bytes) -> bytes:
    parts = urlsplit(location)
    if not parts.scheme and not parts.netloc:
        return location  # a path already, perhaps a relative one
    path = b"/" + parts.path.lstrip(b"/")  # a path that begins with // would name a host
    return path + (b"?" + parts.query if parts.query else b"")
