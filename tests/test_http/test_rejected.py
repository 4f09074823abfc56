"""Requests that count for no model, and how HTTP is, on /metrics of the whole application."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from lifespan import with_state
from prometheus_client.parser import text_string_to_metric_families

from app.lifecycle import Lifecycle
from app.main import create_app
from app.settings import Settings

ECHO = Path(__file__).resolve().parents[2] / "app" / "models" / "demo" / "echo"
KEY = {"X-API-Key": "right"}


async def test_what_no_model_counts_is_counted(tmp_path: Path) -> None:
    lifecycle, ready = Lifecycle(), asyncio.Event()
    lifecycle.certificate_expires, lifecycle.malformed = lambda: 4e9, lambda: 3
    settings = Settings(
        models="", model=(f"echo={ECHO}",), profile_dir=tmp_path, profile_budget_s=0, api_key="right", max_connections=9
    )
    app = create_app(settings, lifecycle, on_ready=lambda registry: ready.set())
    async with app.running() as state:
        transport = httpx.ASGITransport(with_state(app, state))
        async with httpx.AsyncClient(transport=transport, base_url="http://one") as client:
            await ready.wait()

            async def status(path: str, headers: dict[str, str]) -> int:
                return (await client.post(path, json=[1, 2, 3, 4], headers=headers)).status_code

            assert await status("/predict/echo", {}) == 401
            assert await status("/predict/echo", {"X-API-Key": "wrong"}) == 401
            assert await status("/predict/nobody", KEY) == 404
            assert await status("/nowhere", KEY) == 404
            assert await status("/predict/echo", KEY) == 200
            lifecycle.connections = lambda: 10
            assert await status("/predict/echo", KEY) == 503
            text = (await client.get("/metrics", headers=KEY)).text
    found = {
        (sample.name, sample.labels.get("reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    rejected = {reason: value for (name, reason), value in found.items() if name == "starling_rejected_total"}
    assert rejected == {
        "unauthorized": 2, "not_found": 2, "too_many_connections": 1, "malformed": 3,
    }  # fmt: skip
    assert found["starling_open_connections", None] == 10
    assert found["starling_held_bytes", None] == 0
    assert found["starling_certificate_expiry_seconds", None] == 4e9
    assert found["starling_loop_lag_seconds", None] >= 0
