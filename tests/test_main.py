"""What the server takes from kept profiles: only what was not given, only what fits this machine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from lifespan import started, with_state
from runtimes import HostRuntime

from app import __version__, engine_setup, main
from app.engine.profiling.cache import Key, ProfileCache, cpu_name
from app.errors import ConfigError
from app.scheduler.estimates.profile import ModelProfile
from app.settings import MIB, Settings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProfileCache:
    monkeypatch.setattr(engine_setup, "cpu_cores", lambda: 4)
    monkeypatch.setattr(engine_setup.cuda, "name_of", lambda gpu: f"cuda GPU {gpu}")
    return ProfileCache(tmp_path)


def keep(cache: ProfileCache, hardware: str, model: str = "m", precision: str = "fp32", **told: Any) -> None:
    suggested = {"threads": 2, "workers": [32, 32], "max_alive": 48, **told}
    profile = ModelProfile((1,), extra={"made": "2026-01-01", "suggested": suggested, "precision": precision})
    cache.store(Key(model, precision, hardware, 2), profile)


def sized(cache: ProfileCache, gpu: int | None = None, **given: Any) -> tuple[Any, Any, Any]:
    settings = Settings(profile_dir=cache.folder, **given)
    found = engine_setup.with_suggested_size(settings, ["m", "n"], gpu)
    return found.threads, found.workers, found.max_alive


def test_nothing_is_known(cache: ProfileCache) -> None:
    assert sized(cache) == (None, (), None)


def test_all_three_are_taken(cache: ProfileCache) -> None:
    keep(cache, cpu_name())
    assert sized(cache) == (2, (32, 32), 48)


def test_models_share_a_device(cache: ProfileCache) -> None:
    keep(cache, cpu_name())
    keep(cache, cpu_name(), "n", threads=1, workers=[8], max_alive=64)
    assert sized(cache) == (1, (32,), 64)


@pytest.mark.parametrize("given", [{"threads": 1}, {"workers": (4,)}])
def test_what_was_given_stays(cache: ProfileCache, given: dict[str, Any]) -> None:
    keep(cache, cpu_name())
    before = Settings(**given)
    assert sized(cache, **given) == (before.threads, before.workers, None)


def test_a_bound_that_was_given_stays(cache: ProfileCache) -> None:
    keep(cache, cpu_name())
    assert sized(cache, max_alive=7) == (2, (32, 32), 7)


def test_a_policy_that_sizes_itself_takes_nothing_from_profiles(cache: ProfileCache) -> None:
    """Threads and bounds were measured for other workers than Ebird's."""
    keep(cache, cpu_name())
    assert sized(cache, policy="ebird") == (None, (), None)


@pytest.mark.parametrize(("threads", "warned"), [(1, True), (2, True)])
def test_ebird_is_told_when_the_device_cannot_run_its_workers_at_once(
    threads: int, warned: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_setup, "cpu_cores", lambda: 2)
    device = engine_setup.device_of(Settings(policy="ebird", threads=threads), None)
    assert [worker.capacity for worker in device.spec.workers] == [1, 1, 2, 4, 8, 16]
    assert ("fewer than the 6 workers that the policy is made for" in caplog.text) == warned
    caplog.clear()
    engine_setup.device_of(Settings(policy="ebird", workers=(1, 8), threads=1), None)
    engine_setup.device_of(Settings(threads=1, workers=(4, 4, 4)), None)
    assert caplog.text == ""


def test_a_profile_of_a_larger_machine(cache: ProfileCache) -> None:
    keep(cache, cpu_name(), threads=4)
    assert sized(cache) == (None, (), None)


def test_a_gpu_has_profiles_of_its_own(cache: ProfileCache) -> None:
    """By hardware, by precision, and by whether graphs are captured; threads are the CPU's and bound nothing."""
    keep(cache, cpu_name())
    keep(cache, "cuda GPU 1", threads=1, workers=[32] * 8, max_alive=512)
    keep(cache, "cuda GPU 1", precision="bf16", threads=1, workers=[64], max_alive=128)
    keep(cache, "cuda GPU 1, no graphs", threads=1, workers=[16], max_alive=16)
    assert sized(cache, 1) == (1, (32,) * 8, 512)
    assert sized(cache, 1, precision="bf16") == (1, (64,), 128)
    assert sized(cache, 1, cuda_graphs=False) == (1, (16,), 16)
    assert sized(cache, 0) == (None, (), None)


@pytest.mark.parametrize(
    ("given", "depth"),
    [({}, 2), ({"policy": "ebird"}, 1), ({"policy": "ebird", "push_depth": 3}, 3), ({"push_depth": 1}, 1)],
)
def test_ebird_has_no_unit_behind_one_at_work(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], depth: int
) -> None:
    """On a GPU other policies have two; what was given stays, and is refused by name when a model loads."""
    monkeypatch.setattr(engine_setup.cuda, "CudaRuntime", lambda gpu: HostRuntime())
    assert engine_setup.device_of(Settings(**given), 0).spec.push_depth == depth


@pytest.mark.parametrize(
    ("given", "priorities"),
    [({}, [0, -1]), ({"classes": "streams"}, [0, 0]), ({"policy": "ebird", "workers": (1, 2)}, [0, 0])],
)
def test_the_worker_kept_for_real_time_comes_first_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], priorities: list[int]
) -> None:
    monkeypatch.setattr(engine_setup.cuda, "CudaRuntime", lambda gpu: HostRuntime())
    spec = engine_setup.device_of(Settings(**{"workers": (4, 8)} | given), 0).spec
    assert [worker.priority for worker in spec.workers] == priorities
    assert not spec.goes_on


async def test_two_applications_live_in_one_process(tmp_path: Path) -> None:
    """Each with models and an engine of its own; building and starting one sets nothing for the process."""
    before = gc.get_threshold(), sys.getswitchinterval()
    frozen = gc.get_freeze_count()
    ready = [asyncio.Event(), asyncio.Event()]
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for event in ready:
            settings = Settings(models="demo", profile_dir=tmp_path, profile_budget_s=0)
            app = main.create_app(settings, on_ready=lambda registry, event=event: event.set())
            state = await stack.enter_async_context(started(app))
            transport = httpx.ASGITransport(with_state(app, state))
            client = httpx.AsyncClient(transport=transport, base_url="http://one")
            clients.append(await stack.enter_async_context(client))
        await asyncio.gather(*(event.wait() for event in ready))
        for client in clients:
            answer = await client.post("/predict/echo", json=[1, 2, 3, 4])
            assert (answer.status_code, answer.json()) == (200, {"y": [1.0, 2.0, 3.0, 4.0]})
            told = (await client.get("/metrics")).text.splitlines()
            assert {"starling_live 1.0", "starling_ready 1.0"} < set(told)
            assert 'starling_model_ready{model="echo",version="1"} 1.0' in told
            assert any(line.startswith("starling_build_info{") and f'"{__version__}"' in line for line in told)
        assert asyncio.get_running_loop()._default_executor is None or "aside" not in str(  # type: ignore[attr-defined]
            asyncio.get_running_loop()._default_executor._thread_name_prefix  # type: ignore[attr-defined]
        )
    assert (gc.get_threshold(), sys.getswitchinterval()) == before
    assert gc.get_freeze_count() <= frozen  # what was frozen before may have gone meanwhile


@pytest.mark.parametrize(("field", "value"), [("policy", "best"), ("objective", "speed"), ("objective", "1")])
def test_a_name_that_there_is_not_is_known_before_anything_starts(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: expected .*, got '{value}'"):
        main.create_app(Settings(**{field: value}))


def test_a_record_that_cannot_be_written_is_known_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^record: .*nowhere/record\.jsonl: No such file or directory$"):
        main.create_app(Settings(record=tmp_path / "nowhere" / "record.jsonl"))


@pytest.mark.parametrize("docs", [True, False])
async def test_the_page_can_be_taken_away(docs: bool) -> None:
    """With it go the paths that need no key."""
    app = main.create_app(Settings(docs=docs, api_key="sesame"))
    state = {"health": SimpleNamespace(closing=False)}
    key = {"X-API-Key": "sesame"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(with_state(app, state)), base_url="http://a") as http:
        without_key = {(await http.get(path)).status_code for path in ("/docs", "/docs/docs.js")}
        with_key = {(await http.get(path, headers=key)).status_code for path in ("/docs", "/docs/docs.js")}
        assert (without_key, with_key) == (({200}, {200}) if docs else ({401}, {404}))
        assert (await http.get("/redoc", headers=key)).status_code == 404


def test_a_containers_memory_bounds_bodies(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Twelve bodies of 32 MB do not come into a container of 600 MiB: two do. A body is no larger than all together."""
    monkeypatch.setattr(engine_setup, "resident_bytes", lambda: 250 * MIB)
    for limit, inflight, body in ((None, 512, 64), (4096, 512, 64), (600, 87, 64), (350, 25, 25)):
        monkeypatch.setattr(engine_setup, "memory_limit", lambda limit=limit: limit and limit * MIB)
        limits = main._limits(Settings(), engine_setup.memory_of(Settings(), 1, on_gpu=False).bodies)
        assert (limits.inflight // MIB, limits.body // MIB) == (inflight, body)
    assert "bodies may take 87 MiB, not 512: the container's memory is 600 MiB" in caplog.text
