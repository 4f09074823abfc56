"""What the query of an inference request asks for, `?timeout_ms=50&priority=1`: on routes whose bodies have no room.

V2 says the same in its body's `parameters`, and clients of it send queries of their own, so there they are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from app.errors import BadRequest
from app.http.codecs.tensors import shown
from app.http.codecs.v2_decode import MAX_PRIORITY, MAX_TIMEOUT_US

KNOWN = ("timeout_ms", "priority")
_DECIMAL = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")  # no sign, no exponent, no "nan"
_INTEGER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query asks for; the defaults mean that it asks for nothing, as in `DecodedCall`."""

    priority: int = 0
    timeout_us: int | None = None


NOTHING = Asked()


def parse_query(query: bytes) -> Asked:
    """What a query, as it stands behind the "?", asks for. Raises BadRequest that names the parameter."""
    if not query:
        return NOTHING
    given: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in KNOWN:
            raise BadRequest(f"query: expected no parameter but {' and '.join(KNOWN)}, got {shown(name)}")
        if name in given:
            raise BadRequest(f"query: {name} is given twice")
        given[name] = value
    return Asked(_priority(given.get("priority", "0")), _timeout_us(given.get("timeout_ms", "0")))


def _priority(text: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) > MAX_PRIORITY:
        raise BadRequest(f"query: priority: expected an integer from 0 to {MAX_PRIORITY}, got {shown(text)}")
    return int(text)


def _timeout_us(text: str) -> int | None:
    """Microseconds, at least 1; None for 0, which is the model's default."""
    if not _DECIMAL.fullmatch(text) or float(text) * 1000 > MAX_TIMEOUT_US:
        top = MAX_TIMEOUT_US // 1000
        raise BadRequest(f"query: timeout_ms: expected milliseconds from 0 to {top}, got {shown(text)}")
    return max(1, round(float(text) * 1000)) if float(text) else None
