"""Offers to upgrade to another protocol, which this server declines."""

from __future__ import annotations

from collections.abc import Iterable

_OFFER = (b"upgrade", b"http2-settings")


def declined(method: bytes, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of the same HTTP/1.1 request without its offer. Names of headers are in lower case.

    Java's client offers HTTP/2 with its first request, as RFC 7540, 3.2 has it. A server that declines answers the
    request as if nothing had been offered, but the parser stops at such a head and drops the body behind it.
    """
    lines = [b"%s %s HTTP/1.1" % (method, url)]
    for name, value in headers:
        if name == b"connection":
            value = b", ".join(token.strip() for token in value.split(b",") if token.strip().lower() not in _OFFER)
        if name not in _OFFER and (value or name != b"connection"):
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"
