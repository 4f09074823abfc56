"""The application as a whole: what is checked before it starts, two in one process, the page that can be left out."""

from __future__ import annotations

import contextlib
import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from lifespan import serving, with_state

from app import __version__, engine_setup, main
from app.errors import ConfigError
from app.settings import MIB, Settings


async def test_two_applications_live_in_one_process(tmp_path: Path) -> None:
    """Each with models and an engine of its own; building and starting one sets nothing for the process."""
    before = gc.get_threshold(), sys.getswitchinterval()
    frozen = gc.get_freeze_count()
    settings = Settings(models="demo", profile_dir=tmp_path, profile_budget_s=0)
    async with contextlib.AsyncExitStack() as stack:
        loaded: list[int] = []
        apps = [main.create_app(settings, on_ready=lambda models: loaded.append(len(models.ready()))) for _ in range(2)]
        clients = [(await stack.enter_async_context(serving(app)))[0] for app in apps]
        assert loaded == [2, 2]
        for client in clients:
            answer = await client.post("/predict/echo", json=[1, 2, 3, 4])
            assert (answer.status_code, answer.json()) == (200, {"y": [1.0, 2.0, 3.0, 4.0]})
            told = (await client.get("/metrics")).text.splitlines()
            assert {"starling_live 1.0", "starling_ready 1.0"} < set(told)
            assert 'starling_model_ready{model="echo",version="1"} 1.0' in told
            assert any(line.startswith("starling_build_info{") and f'"{__version__}"' in line for line in told)
    assert (gc.get_threshold(), sys.getswitchinterval()) == before
    assert gc.get_freeze_count() <= frozen  # what was frozen before may have gone meanwhile


def test_a_policy_that_there_is_not_is_known_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"^policy: expected one of adaptive, .*, got 'best'"):
        main.create_app(Settings(policy="best"))


def test_a_record_that_cannot_be_written_is_known_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^record: .*nowhere/record\.jsonl: No such file or directory$"):
        main.create_app(Settings(record=tmp_path / "nowhere" / "record.jsonl"))


@pytest.mark.parametrize("pages", [True, False])
async def test_the_pages_can_be_taken_away(pages: bool) -> None:
    """With it go the paths that need no key."""
    app = main.create_app(Settings(pages=pages, api_key="sesame"))
    state = {"health": SimpleNamespace(closing=False)}
    key = {"X-API-Key": "sesame"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(with_state(app, state)), base_url="http://a") as http:
        paths = ("/docs", "/docs/docs.js", "/ui")
        without_key = {(await http.get(path)).status_code for path in paths}
        with_key = {(await http.get(path, headers=key)).status_code for path in paths}
        assert (without_key, with_key) == (({200}, {200}) if pages else ({401}, {404}))
        assert (await http.get("/redoc", headers=key)).status_code == 404


def test_a_containers_memory_bounds_bodies(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Twelve bodies of 32 MB do not come into a container of 600 MiB: two do. A body is no larger than all together."""
    monkeypatch.setattr(engine_setup, "resident_bytes", lambda: 250 * MIB)
    for limit, inflight, body in ((None, 512, 64), (4096, 512, 64), (600, 87, 64), (350, 25, 25)):
        monkeypatch.setattr(engine_setup, "memory_limit", lambda limit=limit: limit and limit * MIB)
        limits = main._limits(Settings(), engine_setup.memory_of(Settings(), 1, on_gpu=False).bodies)
        assert (limits.inflight // MIB, limits.body // MIB) == (inflight, body)
    assert "bodies may take 87 MiB, not 512: the container's memory is 600 MiB" in caplog.text
