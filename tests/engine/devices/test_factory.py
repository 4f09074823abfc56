"""Which workers a GPU gets, and that the scheduler keeps the one whose streams come first."""

from __future__ import annotations

import pytest
import torch
from runtimes import FakeRuntime

from app.engine.devices.base import DeviceOptions
from app.engine.devices.factory import make_device, worker_specs
from app.engine.devices.streams import cuda
from app.engine.devices.streams.device import StreamDevice
from app.errors import ConfigError
from app.scheduler.gate import Gate
from app.scheduler.ledger import Ledger
from app.scheduler.workers import Workers

KEEPS = DeviceOptions(keeps_one=True)


@pytest.mark.parametrize(
    ("capacities", "options", "priorities"),
    [
        ((4, 8, 2), KEEPS, (0, -1, 0)),
        ((4, 4), KEEPS, (0, -1)),
        ((4,), KEEPS, (0,)),
        ((4, 8), DeviceOptions(), (0, 0)),
        ((8, 4), DeviceOptions(keeps_one=True, sm_share=0.5), (-1, 1)),
    ],
)
def test_the_worker_kept_for_real_time_has_streams_of_high_priority(
    capacities: tuple[int, ...], options: DeviceOptions, priorities: tuple[int, ...]
) -> None:
    specs = worker_specs(capacities, options)
    assert tuple(spec.capacity for spec in specs) == capacities
    assert tuple(spec.priority for spec in specs) == priorities
    device = StreamDevice(FakeRuntime(), specs)
    if len(capacities) > 1 and options.keeps_one:
        kept = Gate(device.spec, Ledger(), Workers(device.spec)).kept
        assert kept == priorities.index(-1)


def test_streams_are_asked_for_with_their_priorities() -> None:
    runtime = FakeRuntime()
    device = StreamDevice(runtime, worker_specs((2, 4), DeviceOptions(keeps_one=True, sm_share=0.5)))
    device._start = lambda thread: None  # type: ignore[method-assign]
    device._begin()
    found = [(worker.stream.priority, worker.out.priority) for worker in device.workers]
    assert found == [(1, 1), (-1, -1)]
    assert device.launches.in_stream.priority == 0


@pytest.mark.parametrize(
    ("capacities", "options", "message"),
    [
        ((4,), DeviceOptions(keeps_one=True, sm_share=0.5), "best_effort_sms: expected several workers"),
        ((4, 4), DeviceOptions(sm_share=0.5), "best_effort_sms: expected several workers"),
        ((4, 4), DeviceOptions(keeps_one=True, sm_share=0.5, guard=True), "best_effort_sms: expected no cuda_guard"),
        ((4, 4), DeviceOptions(guard=True), "cuda_guard: this torch captures no IF nodes"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capacities: tuple[int, ...], options: DeviceOptions, message: str
) -> None:
    monkeypatch.setattr(cuda, "guards", lambda: False)
    with pytest.raises(ConfigError, match=message) as raised:
        make_device(0, capacities, 1, 1, options)
    assert "\n" not in str(raised.value)


def test_without_green_contexts_a_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.green_contexts, "SUPPORTED", False)
    with pytest.raises(ConfigError, match=r"best_effort_sms: torch .* has no streams of green contexts"):
        cuda.CudaRuntime(0, 0.5)
