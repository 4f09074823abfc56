"""Pages of allowed origins read every answer, on both ways; others read none; without CORS nothing is added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from app.http.cors import Cors

from .catalog import LOCKED
from .echo import INFER, Echo, MakeCaller, body

SHOP = b"https://shop.example"
PLAIN = Cors(("https://shop.example", "http://localhost:3000"))
ANY = Cors(("*",))
ASKS = {b"origin": SHOP, b"access-control-request-method": b"POST"}


def cors_of(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode(): value.decode()
        for name, value in headers.items()
        if name.startswith(b"access-control-") or name == b"vary"
    }


READABLE = {
    "access-control-allow-origin": "https://shop.example",
    "access-control-expose-headers": "x-request-id, x-batch-size, server-timing, inference-header-content-length, "
    "retry-after, www-authenticate, traceparent, x-error-code",
    "vary": "origin",
}


@pytest.mark.parametrize(
    ("path", "sent", "status", "options"),
    [
        (INFER, body(), 200, {}),
        (INFER, body(), 429, {}),
        (INFER, b"{", 400, {}),
        ("/v2/models/ekko/infer", body(), 404, {}),
        (INFER, b" " * 1001, 413, {}),
        (INFER, body(), 401, {"auth": LOCKED}),
        (INFER, body(), 503, {"connections": lambda: 4}),
        ("/elsewhere", b"", 299, {}),
    ],
)
async def test_every_answer_can_be_read(
    caller: MakeCaller, model: Echo, path: str, sent: bytes, status: int, options: dict[str, Any]
) -> None:
    call = caller(cors=PLAIN, **options)
    model.full = frozenset({"realtime"} if status == 429 else ())
    reply = await call(path, sent, {b"origin": SHOP})
    assert (reply.status, cors_of(reply.headers)) == (status, READABLE)


@pytest.mark.parametrize(
    ("front", "headers", "found"),
    [
        (PLAIN, {b"origin": b"https://elsewhere.example"}, {"vary": "origin"}),
        (PLAIN, {b"origin": b"HTTPS://Shop.Example"}, READABLE),  # browsers send lower case
        (PLAIN, {b"origin": b"http://localhost:3000"},
         {**READABLE, "access-control-allow-origin": "http://localhost:3000"}),
        (ANY, {}, {}),
        (ANY, {b"origin": SHOP}, {name: value for name, value in READABLE.items() if name != "vary"}
         | {"access-control-allow-origin": "*"}),
        (None, {b"origin": SHOP}, {}),
    ],
)  # fmt: skip
async def test_only_those_that_are_allowed(
    caller: MakeCaller, front: Cors | None, headers: dict[bytes, bytes], found: dict[str, str]
) -> None:
    reply = await caller(cors=front)(INFER, body(), headers)
    assert (reply.status, cors_of(reply.headers)) == (200, found)


@pytest.mark.parametrize("path", [INFER, "/nowhere"])
async def test_a_preflight_needs_no_key(caller: MakeCaller, path: str) -> None:
    asks = {**ASKS, b"access-control-request-headers": b"content-type,x-api-key"}
    reply = await caller(cors=PLAIN, auth=LOCKED, connections=lambda: 4)(path, b"", asks, "OPTIONS")
    assert (reply.status, reply.body) == (204, b"")
    assert cors_of(reply.headers) == {
        **READABLE, "access-control-allow-methods": "GET, HEAD, POST", "access-control-max-age": "600",
        "access-control-allow-headers": "content-type,x-api-key",
    }  # fmt: skip


async def test_a_preflight_of_others_says_why(caller: MakeCaller) -> None:
    reply = await caller(cors=PLAIN)(INFER, b"", {**ASKS, b"origin": b"https://elsewhere.example"}, "OPTIONS")
    assert reply.status == 400
    assert "'https://elsewhere.example' may not call this server" in reply.error
    assert cors_of(reply.headers) == {"vary": "origin"}
