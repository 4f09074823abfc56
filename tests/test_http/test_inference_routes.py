"""The query of an inference request: two parameters, checked, and no other."""

from __future__ import annotations

import pytest

from app.errors import BadRequest
from app.http.inference_routes import parse_query


@pytest.mark.parametrize(
    "value", ["", "+1", "-1", "1e3", "nan", "inf", "0x1", "1_0", "1 ", "9" * 14, "9" * 400, "\u0663"]
)
@pytest.mark.parametrize("name", ["timeout_ms", "priority"])
def test_values_that_are_no_plain_numbers(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match=rf"query: {name}: expected .* got "):
        parse_query(f"{name}={value}".encode())


@pytest.mark.parametrize("query", [b"timeout_ms&timeout_ms=1", b"timeout_ms=5&timeout_ms=5"])
def test_a_parameter_that_is_given_twice(query: bytes) -> None:
    with pytest.raises(BadRequest, match="timeout_ms is given twice"):
        parse_query(query)


def test_a_name_that_is_no_text_is_quoted_and_cut() -> None:
    with pytest.raises(BadRequest) as raised:
        parse_query(b"%ff" * 500 + b"=1")
    assert "priority, got" in raised.value.message
    assert len(raised.value.message) < 200
