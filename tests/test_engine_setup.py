"""What the engine's device takes from settings."""

from __future__ import annotations

from typing import Any

import pytest
from runtimes import HostRuntime

from app import engine_setup
from app.settings import Settings


@pytest.mark.parametrize(
    ("given", "depth", "priorities"),
    [
        ({}, 2, [0, -1]),
        ({"policy": "ebird"}, 1, [0, 0]),  # no unit behind one at work
    ],
)
def test_a_gpus_workers(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], depth: int, priorities: Any) -> None:
    """The one that is kept for real-time work comes first."""
    monkeypatch.setattr("app.engine.streams.cuda.CudaRuntime", lambda gpu: HostRuntime())
    spec = engine_setup.device_of(Settings(**{"workers": (1, 8)} | given), 0).spec
    assert (spec.push_depth, [worker.priority for worker in spec.workers]) == (depth, priorities)
    assert spec.multi_step
