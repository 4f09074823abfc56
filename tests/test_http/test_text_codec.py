"""Routes whose bodies name the model: the call is found, admitted, answered and counted as others are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.contract import CLASSES
from app.errors import ModelFailed
from app.http import call as calls
from app.http.auth import Auth
from app.http.keys import keys_of

from .catalog import served, spec
from .echo import Caller, Echo, EchoLease, MakeCaller

PATH = "/v1/embeddings"


class VectorLease(EchoLease):
    def write(self, index: int, values: Any) -> None:
        self._rows = np.array([[len(value), 1, 2] for value in values], np.float32)


@pytest.fixture
def model() -> Echo:
    """A model that makes a vector of a text."""
    plain = served("echo", (spec("text", "BYTES"),), (spec("embedding", "FP32", 3),))
    return Echo(plain.info, plain.model, lease_type=VectorLease)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "echo", "input": ["a", "bc"], **fields}).encode()


@pytest.mark.parametrize("off_loop", [False, True])
async def test_the_body_is_answered_by_the_model_that_it_names(
    caller: MakeCaller, model: Echo, off_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if off_loop:
        monkeypatch.setattr(calls, "OFF_LOOP_BYTES", 1)
    asking = caller(model)
    reply = await asking(f"{PATH}?timeout_ms=5&priority=3", body(), {b"x-class": b"best_effort"})
    assert [one["embedding"] for one in reply.json()["data"]] == [[1, 1, 2], [2, 1, 2]]
    asked = {name: model.asked[name] for name in ("rows", "klass", "priority", "timeout_us")}
    assert asked == {"rows": 2, "klass": "best_effort", "priority": 3, "timeout_us": 5000}
    assert (model.finished, model.open_leases, asking.app.resources.bodies.held) == (["ok"], 0, 0)


@pytest.mark.parametrize(
    ("sent", "status", "error"),
    [
        (body(model="ekko"), 404, ("invalid_request_error", "model", "not_found")),
        (b"{", 400, ("invalid_request_error", None, "bad_request")),
        (body(input=[1]), 400, ("invalid_request_error", "input", "bad_request")),
        (b"[]", 400, ("invalid_request_error", None, "bad_request")),
        (body() + b" " * 900, 413, ("invalid_request_error", None, "too_large")),
    ],
)
async def test_what_is_wrong_has_the_body_of_openai(
    caller: MakeCaller, model: Echo, sent: bytes, status: int, error: tuple[Any, ...]
) -> None:
    reply = await caller(model)(PATH, sent)
    found = reply.json()["error"]
    assert (reply.status, (found["type"], found["param"], found["code"])) == (status, error)


async def test_errors_of_the_server_have_it_too(caller: MakeCaller, model: Echo) -> None:
    asking: Caller = caller(model, options={"auth": Auth(keys_of("api_key", "secret", None))})
    refused, key = await asking(PATH, body()), {b"authorization": b"Bearer secret"}
    assert (refused.status, refused.json()["error"]["type"]) == (401, "authentication_error")
    model.full = frozenset(CLASSES)
    full = await asking(PATH, body(), key)
    assert (full.status, full.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(full.headers[b"retry-after"]) >= 4
    model.full, model.fails = frozenset(), ModelFailed("it raised")
    failed = await asking(PATH, body(), key)
    assert (failed.status, failed.json()["error"]["type"]) == (500, "server_error")
    assert (model.open_leases, asking.app.resources.bodies.held) == (0, 0)
    assert model.finished == ["queue_full", "model_failed"]
