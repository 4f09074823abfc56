"""A call that has been answered keeps nothing of its model: its connection has it until the next request."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.lifecycle import Lifecycle
from app.main import create_app
from app.settings import Settings

DEMO = Path(__file__).parents[2] / "app" / "models" / "demo"
RIGHT = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


@pytest.mark.parametrize(("asked", "status"), [(RIGHT, 200), ({"inputs": []}, 400)])
async def test_a_model_that_is_unloaded_is_freed_while_its_clients_stay(
    asked: dict[str, Any], status: int, tmp_path: Path
) -> None:
    settings = Settings(models=str(DEMO), profile_dir=tmp_path, profile_budget_s=0)
    app = create_app(settings, lifecycle := Lifecycle())
    async with app.running() as state:
        await lifecycle.loaded.wait()
        answered: asyncio.Queue[int] = asyncio.Queue()
        connection: Any = SimpleNamespace(
            connections=set(), app_state=state, loop=asyncio.get_running_loop(), tasks=set(),
            send_answer=lambda exchange, status, head, body: answered.put_nowait(status),
        )  # fmt: skip
        body = json.dumps(asked).encode()
        call = app.fast_path.take(connection, b"/v2/models/echo/infer", {}, len(body))
        assert call is not None
        call.received(body)
        assert await answered.get() == status
        served = weakref.ref(state["catalog"].find("echo", None))
        await state["catalog"].unload("echo")
        gc.collect()
        assert served() is None
        assert call.ended
