"""The API key: as a header of its own or as a bearer token, and nothing else will do."""

from __future__ import annotations

import pytest

from app.api.access import PROBES, check_key
from app.errors import Unauthorized


@pytest.mark.parametrize(
    "headers",
    [
        {b"x-api-key": b"sesame"},
        {b"authorization": b"Bearer sesame"},
        {b"authorization": b"bearer  sesame "},
        {b"x-api-key": b"sesame", b"authorization": b"Basic other"},
    ],
)
def test_the_key(headers: dict[bytes, bytes]) -> None:
    check_key(headers, b"sesame")


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "is needed"),
        ({b"authorization": b"sesame"}, "is needed"),
        ({b"authorization": b"Basic sesame"}, "is needed"),
        ({b"authorization": b"Bearer"}, "is wrong"),
        ({b"x-api-key": b""}, "is wrong"),
        ({b"x-api-key": b"Sesame"}, "is wrong"),
        ({b"x-api-key": b"\xff", b"authorization": b"Bearer sesame"}, "is wrong"),
    ],
)
def test_anything_else(headers: dict[bytes, bytes], words: str) -> None:
    with pytest.raises(Unauthorized, match=words):
        check_key(headers, b"sesame")


def test_probes_are_open_under_all_their_names() -> None:
    assert {"/v2/health/live", "/v2/health/ready", "/livez", "/readyz", "/healthz", "/ping"} == PROBES
