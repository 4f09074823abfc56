"""CORS: which pages of other origins may call this server from a browser, and read its answers.

A browser first sends a preflight (OPTIONS, without the key). Then it checks the headers of every answer, also of errors
and refusals: without CORS headers the page cannot read them. Keys travel in headers that the page sets itself, so the
browser's own credentials (cookies) are not allowed.
"""

from __future__ import annotations

from collections.abc import Collection

from app.errors import BadRequest
from app.http.body import RequestHeaders
from app.http.errors import METHODS, error_parts

_ORIGIN, _METHOD, _HEADERS = b"origin", b"access-control-request-method", b"access-control-request-headers"
#: Headers that a page may read, besides the few that browsers always allow.
_EXPOSED = (
    b"x-request-id, x-batch-size, server-timing, inference-header-content-length, retry-after, www-authenticate, "
    b"traceparent, x-error-code"
)
_READABLE = b"access-control-allow-origin: %s\r\naccess-control-expose-headers: %s\r\n%s"
_MAX_AGE_S = 600  # in which a browser may cache a preflight; Chromium caps it at two hours
_ALLOWED = ", ".join(METHODS).encode()
_PREFLIGHT = b"access-control-allow-methods: %s\r\naccess-control-max-age: %d\r\n" % (_ALLOWED, _MAX_AGE_S)


class Cors:
    """`origins`: allowed ones, in lower case, as `https://app.example.com`; `*` allows any."""

    def __init__(self, origins: Collection[str]) -> None:
        self._any = "*" in origins
        self._allowed = frozenset(origin.encode("latin-1") for origin in origins)
        self._vary = b"" if self._any else b"vary: origin\r\n"

    def lines(self, origin: bytes | None) -> bytes:
        """The header lines of an answer to a request of this origin; None: the request names none."""
        allowed = self._allows(origin)
        return self._vary if allowed is None else _READABLE % (allowed, _EXPOSED, self._vary)

    def preflight(self, method: str, headers: RequestHeaders) -> tuple[int, bytes, bytes] | None:
        """Status, header lines and body of the answer to a preflight, beside `lines`; None if it is not one."""
        if method != "OPTIONS" or _ORIGIN not in headers or _METHOD not in headers:
            return None
        if self._allows(headers[_ORIGIN]) is None:
            origin = headers[_ORIGIN][:80].decode("latin-1")
            return error_parts(BadRequest(f"Origin: {origin!r} may not call this server (cors_origins)"))
        head = _PREFLIGHT
        if _HEADERS in headers:  # allow any: V2 clients may send headers for a proxy
            head += b"access-control-allow-headers: %s\r\n" % headers[_HEADERS]
        return 204, head, b""

    def _allows(self, origin: bytes | None) -> bytes | None:
        """The origin to put into the answer; None if it is not allowed."""
        if origin is None:
            return None
        if self._any:
            return b"*"
        origin = origin.lower()
        return origin if origin in self._allowed else None
