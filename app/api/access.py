"""Who may send requests: clients with the API key, where there is one. Probes need none."""

from __future__ import annotations

import hmac

from app.api.routes.probes import LIVE_PATHS, READY_PATHS
from app.errors import Unauthorized

#: Orchestrators have no key, and must be answered also when there are too many connections.
PROBES = frozenset((*LIVE_PATHS, *READY_PATHS))


def check_key(headers: dict[bytes, bytes], key: bytes) -> None:
    """Raise Unauthorized unless a request's headers hold the key, as X-API-Key or as a bearer token."""
    given = _given(headers)
    if given is None:
        raise Unauthorized("an API key is needed: X-API-Key, or Authorization: Bearer")
    if not hmac.compare_digest(given, key):
        raise Unauthorized("the API key is wrong")


def has_key(headers: dict[bytes, bytes], key: bytes) -> bool:
    """Whether `check_key` would raise nothing."""
    given = _given(headers)
    return given is not None and hmac.compare_digest(given, key)


def _given(headers: dict[bytes, bytes]) -> bytes | None:
    """The key that a request came with."""
    given = headers.get(b"x-api-key")
    if given is None:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else None
    return given
