"""What the engine's device takes from settings."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtimes import HostRuntime

from app import engine_setup
from app.engine.profiling.cache import Key, ProfileCache, cpu_name
from app.scheduler.estimates.profile import linear
from app.settings import Settings


@pytest.mark.parametrize(
    ("given", "depth", "priorities"),
    [
        ({}, 2, [0, -1]),
        ({"policy": "ebird"}, 1, [0, 0]),  # no unit behind one at work
        ({"policy": "ebird", "push_ahead_ms": 1}, 2, [0, 0]),  # what was given stays, and is refused when a model loads
        ({"push_ahead_ms": 0}, 1, [0, -1]),
    ],
)
def test_a_gpus_workers(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], depth: int, priorities: Any) -> None:
    """The one that is kept for real-time work comes first."""
    monkeypatch.setattr("app.engine.streams.cuda.CudaRuntime", lambda gpu: HostRuntime())
    spec = engine_setup.device_of(Settings(**{"workers": (1, 8)} | given), 0).spec
    assert (spec.push_depth, [worker.priority for worker in spec.workers]) == (depth, priorities)
    assert spec.multi_step


@pytest.mark.parametrize(
    ("suggested", "given", "threads", "workers", "why"),
    [
        ({"a": (2, 3)}, {}, 2, 3, "as `starling profile a` suggested"),
        ({"a": (1, 2), "b": (1, 2), "c": None}, {}, 1, 2, "as `starling profile a` suggested"),
        ({"a": (2, 3)}, {"threads": 1}, 1, 1, "not those of --threads"),
        ({"a": (2, 3)}, {"precision": "bf16"}, None, 1, "has suggested nothing"),
        ({"a": (1, 2), "b": (2, 3)}, {}, None, 1, "its models need different ones"),
        ({"a": None}, {}, None, 1, "has suggested nothing"),
    ],
)  # fmt: skip
def test_auto_takes_the_workers_and_threads_that_were_suggested(
    suggested: dict[str, tuple[int, int] | None], given: dict[str, Any], threads: int | None, workers: int, why: str,
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("app.settings.cpu_cores", lambda: 8)
    caplog.set_level(logging.INFO, "starling")
    for name, size in suggested.items():
        told = {} if size is None else {"suggested": {"threads": size[0], "workers": [32] * size[1]}}
        extra = {"torch": Key("", "", "", 1).torch, "precision": "fp32", **told}
        ProfileCache(tmp_path).store(Key(name, "", cpu_name(), 1), replace(linear(1, 1, 4), extra=extra))
    settings = Settings(workers="auto", profile_dir=tmp_path, **given)
    found = engine_setup.resolve_workers(settings, suggested, None)
    assert found.threads == threads
    assert len(found.workers) == (workers if workers > 1 else 0)
    assert f"workers auto: {workers} of {threads or 7} thread(s)" in caplog.text
    assert why in caplog.text
