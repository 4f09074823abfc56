"""What the engine's device takes from settings and from kept profiles: only what was not given and fits the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runtimes import HostRuntime

from app import engine_setup
from app.engine.profiling.cache import Key, ProfileCache, cpu_name
from app.scheduler.estimates.profile import ModelProfile
from app.settings import Settings

CPU, GPU = cpu_name(), "cuda GPU 1"


def kept(hardware: str, model: str = "m", precision: str = "fp32", **suggested: Any) -> dict[str, Any]:
    suggested = {"threads": 2, "workers": [32, 32], "max_alive": 48, **suggested}
    return {"hardware": hardware, "model": model, "precision": precision, "suggested": suggested}


#: By hardware, by precision, and by whether graphs are captured; threads are the CPU's and bound nothing.
OF_GPUS = [
    kept(CPU),
    kept(GPU, threads=1, workers=[32] * 8, max_alive=512),
    kept(GPU, precision="bf16", threads=1, workers=[64], max_alive=128),
    kept(f"{GPU}, no graphs", threads=1, workers=[16], max_alive=16),
]


@pytest.mark.parametrize(
    ("profiles", "given", "gpu", "found"),
    [
        ([], {}, None, (None, (), None)),
        ([kept(CPU)], {}, None, (2, (32, 32), 48)),
        # models share a device
        ([kept(CPU), kept(CPU, "n", threads=1, workers=[8], max_alive=64)], {}, None, (1, (32,), 64)),
        # what was given stays
        ([kept(CPU)], {"threads": 1}, None, (1, (), None)),
        ([kept(CPU)], {"workers": (4,)}, None, (None, (4,), None)),
        ([kept(CPU)], {"max_alive": 7}, None, (2, (32, 32), 7)),
        # threads and bounds were measured for other workers than Ebird's
        ([kept(CPU)], {"policy": "ebird"}, None, (None, (), None)),
        # a profile of a larger machine
        ([kept(CPU, threads=4)], {}, None, (None, (), None)),
        (OF_GPUS, {}, 1, (1, (32,) * 8, 512)),
        (OF_GPUS, {"precision": "bf16"}, 1, (1, (64,), 128)),
        (OF_GPUS, {"cuda_graphs": False}, 1, (1, (16,), 16)),
        (OF_GPUS, {}, 0, (None, (), None)),
    ],
)
def test_sizes_that_profiles_suggest(
    profiles: list[dict[str, Any]], given: dict[str, Any], gpu: int | None, found: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(engine_setup, "cpu_cores", lambda: 4)
    monkeypatch.setattr(engine_setup.cuda, "name_of", lambda gpu: f"cuda GPU {gpu}")
    for one in profiles:
        extra = {"made": "2026-01-01", "suggested": one["suggested"], "precision": one["precision"]}
        key = Key(one["model"], one["precision"], one["hardware"], 2)
        ProfileCache(tmp_path).store(key, ModelProfile((1,), extra=extra))
    settings = engine_setup.with_suggested_size(Settings(profile_dir=tmp_path, **given), ["m", "n"], gpu)
    assert (settings.threads, settings.workers, settings.max_alive) == found


@pytest.mark.parametrize("threads", [1, 2])
def test_ebird_is_warned_about_when_the_device_cannot_run_its_workers_at_once(
    threads: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_setup, "cpu_cores", lambda: 2)
    device = engine_setup.device_of(Settings(policy="ebird", threads=threads), None)
    assert [worker.capacity for worker in device.spec.workers] == [1, 1, 2, 4, 8, 16]
    assert "fewer than the 6 workers that the policy is made for" in caplog.text
    caplog.clear()
    engine_setup.device_of(Settings(policy="ebird", workers=(1, 8), threads=1), None)
    engine_setup.device_of(Settings(threads=1, workers=(4, 4, 4)), None)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("given", "depth", "priorities"),
    [
        ({}, 2, [0, -1]),
        ({"policy": "ebird"}, 1, [0, 0]),  # no unit behind one at work
        ({"policy": "ebird", "push_ahead_ms": 1}, 2, [0, 0]),  # what was given stays, and is refused when a model loads
        ({"push_ahead_ms": 0}, 1, [0, -1]),
        ({"classes": "streams"}, 2, [0, 0]),
    ],
)
def test_a_gpus_workers(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], depth: int, priorities: Any) -> None:
    """The one that is kept for real-time work comes first."""
    monkeypatch.setattr(engine_setup.cuda, "CudaRuntime", lambda gpu: HostRuntime())
    spec = engine_setup.device_of(Settings(**{"workers": (1, 8)} | given), 0).spec
    assert (spec.push_depth, [worker.priority for worker in spec.workers]) == (depth, priorities)
    assert spec.multi_step
