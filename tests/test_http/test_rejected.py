"""The whole application, in process: what no model counts is counted, and an unloaded model is freed."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lifespan import serving
from prometheus_client.parser import text_string_to_metric_families

from app.errors import codes
from app.lifecycle import Lifecycle
from app.main import create_app
from app.settings import Settings

ECHO = Path(__file__).resolve().parents[2] / "app" / "models" / "demo" / "echo"
KEY = {"X-API-Key": "right"}


async def test_what_no_model_counts_is_counted(tmp_path: Path) -> None:
    lifecycle = Lifecycle()
    lifecycle.certificate_expires, lifecycle.malformed = lambda: 4e9, lambda: 3
    settings = Settings(
        models="", model=(f"echo={ECHO}",), profile_dir=tmp_path, profile_budget_s=0, api_key="right", max_connections=9
    )
    async with serving(create_app(settings, lifecycle)) as (client, _):
        for path, headers, connections, status in (
            ("/predict/echo", {}, 1, 401), ("/predict/echo", {"X-API-Key": "wrong"}, 1, 401),
            ("/predict/nobody", KEY, 1, 404), ("/nowhere", KEY, 1, 404), ("/predict/echo", KEY, 1, 200),
            ("/predict/echo", KEY, 10, 503),
        ):  # fmt: skip
            lifecycle.connections = lambda count=connections: count
            assert (await client.post(path, json=[1, 2, 3, 4], headers=headers)).status_code == status
        text = (await client.get("/metrics", headers=KEY)).text
    found = {
        (sample.name, sample.labels.get("reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    counts = {reason: value for (name, reason), value in found.items() if name == "starling_rejected_total"}
    assert counts.keys() == {*codes(), "malformed"}
    rejected = {reason: count for reason, count in counts.items() if count}
    assert rejected == {"unauthorized": 2, "not_found": 2, "too_many_connections": 1, "malformed": 3}
    told = {"open_connections": 10, "held_bytes": 0, "certificate_expiry_seconds": 4e9}
    assert {name: found[f"starling_{name}", None] for name in told} == told
    assert found["starling_loop_lag_seconds", None] >= 0


RIGHT = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


@pytest.mark.parametrize(("asked", "status"), [(RIGHT, 200), ({"inputs": []}, 400)])
async def test_a_model_that_is_unloaded_is_freed_while_its_clients_stay(
    asked: dict[str, Any], status: int, tmp_path: Path
) -> None:
    settings = Settings(models=str(ECHO.parent), profile_dir=tmp_path, profile_budget_s=0)
    app = create_app(settings, lifecycle := Lifecycle())
    async with app.running() as state:
        await lifecycle.loaded.wait()
        answered: asyncio.Queue[int] = asyncio.Queue()
        connection: Any = SimpleNamespace(
            connections=set(), app_state=state, loop=asyncio.get_running_loop(), tasks=set(),
            send_answer=lambda exchange, status, head, body: answered.put_nowait(status),
        )  # fmt: skip
        body = json.dumps(asked).encode()
        call = app.fast_path.take(connection, b"/v2/models/echo/infer", {}, len(body), None)
        assert call is not None
        call.begin()
        call.received(body)
        assert await answered.get() == status
        served = weakref.ref(state["catalog"].serving["echo", None])
        await state["catalog"].unload("echo")
        gc.collect()
        assert served() is None
        assert call.served is None
