"""`traceparent`: what is read of it is what was written, and what is malformed is nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.observe.tracing.spans import Parent, parent_of, traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # the example of the specification


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.booleans())
def test_what_is_written_is_read(trace: int, span: int, sampled: bool) -> None:
    assert parent_of(traceparent(trace, span, sampled)) == Parent(trace, span, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[1:]}-{SPAN}-01", f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1", f"01-{TRACE}-{SPAN}-01more", f"00_{TRACE}_{SPAN}_01",
    ],
)  # fmt: skip
def test_malformed_is_none(text: str) -> None:
    assert parent_of(text.encode()) is None
