"""CORS: which pages of other origins may call this server from a browser, and read its answers.

A browser asks first (a preflight, OPTIONS without the key), and then looks at the headers of every answer: those of
errors, refusals and unknown paths too, or its page learns nothing of them. Keys travel in headers that a page sets
itself, so no credentials of the browser's own are asked for.
"""

from __future__ import annotations

from collections.abc import Collection

from app.errors import BadRequest
from app.http.answers import header_list
from app.http.body import Headers
from app.http.codecs.base import RequestHeaders
from app.http.errors import METHODS, error_parts

_ORIGIN, _METHOD, _HEADERS = b"origin", b"access-control-request-method", b"access-control-request-headers"
#: What a page may read of an answer, beside its body and the few headers that it always may.
_EXPOSED = (
    b"x-request-id, x-batch-size, server-timing, inference-header-content-length, retry-after, www-authenticate, "
    b"traceparent, x-error-code"
)
_MAX_AGE = b"600"  # seconds for which a browser need not ask again: Chromium takes no more than two hours


class Cors:
    """`origins` are those that may call, in lower case, as `https://app.example.com`; `*` is any."""

    def __init__(self, origins: Collection[str]) -> None:
        self._any = "*" in origins
        self._allowed = frozenset(origin.encode("latin-1") for origin in origins)
        vary = b"" if self._any else b"vary: origin\r\n"
        readable = b"access-control-allow-origin: %s\r\naccess-control-expose-headers: %s\r\n%s"
        self._lines: dict[bytes | None, bytes] = {
            origin: readable % (origin, _EXPOSED, vary) for origin in self._allowed
        }
        self._lines[None] = vary  # of a request without an origin, or of one that is not allowed

    def lines(self, origin: bytes | None) -> bytes:
        """The header lines of an answer to a request from there; None: it names no origin."""
        return self._lines[self._allows(origin)]

    def preflight(self, method: str, headers: RequestHeaders) -> tuple[int, Headers, bytes] | None:
        """Status, headers and body of the answer, if the request is a preflight."""
        if method != "OPTIONS" or _ORIGIN not in headers or _METHOD not in headers:
            return None
        if self._allows(headers[_ORIGIN]) is None:
            origin = headers[_ORIGIN][:80].decode("latin-1")
            status, lines, body = error_parts(BadRequest(f"Origin: {origin!r} may not call this server (cors_origins)"))
            return status, [*lines, *header_list(self.lines(None))], body
        answer: Headers = [
            *header_list(self.lines(headers[_ORIGIN])),
            (b"access-control-allow-methods", ", ".join(METHODS).encode()),
            (b"access-control-max-age", _MAX_AGE),
        ]
        if _HEADERS in headers:  # any: a V2 client may send headers that only a proxy on the way knows
            answer.append((b"access-control-allow-headers", headers[_HEADERS]))
        return 204, answer, b""

    def _allows(self, origin: bytes | None) -> bytes | None:
        """The origin to name in an answer; None for none."""
        if origin is None:
            return None
        if self._any:
            return b"*"
        origin = origin.lower()
        return origin if origin in self._allowed else None
