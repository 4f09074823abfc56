"""The query of an inference request: two parameters, checked, and no other."""

from __future__ import annotations

import pytest

from app.errors import BadRequest
from app.http.inference_routes import parse_query


@pytest.mark.parametrize("value", ["", "+1", "-1", "1e3", "inf", "1_0", "9" * 14, "9" * 400, "\u0663"])
@pytest.mark.parametrize("name", ["timeout_ms", "priority"])
def test_values_that_are_no_plain_numbers(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match=rf"query: {name}: expected .* got "):
        parse_query(f"{name}={value}".encode())


def test_a_name_that_is_no_text_is_quoted_and_cut() -> None:
    with pytest.raises(BadRequest) as raised:
        parse_query(b"%ff" * 500 + b"=1")
    assert "priority, got" in raised.value.message
    assert len(raised.value.message) < 200
