"""The path under which an ingress offers the server, and redirects that hold there.

An ingress may take its prefix off a path or leave it on: both are the same request here. A redirect names a path with
the prefix and nothing else, so that scheme and host stay those that the client used, whatever is in between.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from app.http.body import Headers, Scope


def strip_prefix(prefix: str, path: str) -> str:
    """A path as this server knows it. `prefix` has no slash at its end; "" is none."""
    if not prefix or not path.startswith(prefix):
        return path
    rest = path[len(prefix) :]
    return rest if rest.startswith("/") else path if rest else "/"


def scope_under_prefix(prefix: str, scope: Scope, path: str) -> Scope:
    """The scope of a request for `path`, as ASGI has it: the whole path, and how much of it is the prefix."""
    return {**scope, "root_path": prefix, "path": prefix + path} if prefix else scope


def path_redirect(status: int, headers: Headers) -> Headers:
    """The headers of an answer, where a redirect names the path alone."""
    if not 301 <= status <= 308 or status == 304:
        return headers
    return [(name, _path_of(value) if name == b"location" else value) for name, value in headers]


def _path_of(location: bytes) -> bytes:
    parts = urlsplit(location)
    if not parts.scheme and not parts.netloc:
        return location  # it names a path alone, which may be relative
    path = b"/" + parts.path.lstrip(b"/")  # two slashes would begin with a host
    return path + (b"?" + parts.query if parts.query else b"")
