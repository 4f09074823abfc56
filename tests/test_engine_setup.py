"""What the engine's device takes from settings."""

from __future__ import annotations

from typing import Any

import pytest
from runtimes import HostRuntime

from app import engine_setup
from app.scheduler.forming.share import best_workers
from app.settings import Settings


@pytest.mark.parametrize(
    ("workers", "given", "depth", "priorities"),
    [
        ((1, 8), {}, 2, [0, -1]),
        ((4, 8, 2), {}, 2, [0, -1, 0]),
        ((8, 4), {}, 2, [-1, 0]),
        ((4, 4), {}, 2, [0, -1]),
        ((4,), {}, 2, [0]),
        ((4, 8), {"policy": "ebird"}, 1, [0, 0]),  # none is kept, and no unit is behind one at work
    ],
)
def test_a_gpus_workers(
    workers: tuple[int, ...], given: dict[str, Any], depth: int, priorities: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams of high priority are those of the worker that the scheduler keeps for real-time work."""
    monkeypatch.setattr("app.engine.streams.cuda.CudaRuntime", lambda gpu: HostRuntime())
    device = engine_setup.device_of(Settings(workers=workers, **given), 0)
    spec = device.spec
    assert (spec.push_depth, [worker.priority for worker in spec.workers]) == (depth, priorities)
    assert [worker.capacity for worker in spec.workers] == list(workers)
    assert spec.multi_step
    assert device._spare_host.threads == 1  # a launcher waits for models that run on the CPU
    if -1 in priorities:
        assert best_workers(spec) == {priorities.index(-1)}
