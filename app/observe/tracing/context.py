"""Trace context as W3C defines it: the header `traceparent` of requests and answers."""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1  # the one flag that version 00 defines


class Parent(NamedTuple):
    """The span that a request belongs to, and whether its caller records the trace."""

    trace_id: int
    span_id: int
    sampled: bool


def parent_of(header: bytes) -> Parent | None:
    """What a `traceparent` names; None for a malformed one, which counts as none (Trace Context, 3.2.2).

    A later version may say more behind the flags; version 00 must end there, and ff is no version.
    """
    found = _TRACEPARENT.fullmatch(header.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def traceparent(trace_id: int, span_id: int, sampled: bool) -> bytes:
    """The header's value for a span."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, sampled)
