"""Which workers a GPU gets, and that the scheduler keeps the one whose streams come first."""

from __future__ import annotations

import pytest
from runtimes import FakeRuntime

from app.engine.device import DeviceOptions
from app.engine.device_factory import worker_specs
from app.engine.streams.device import StreamDevice
from app.scheduler.forming.reef import kept_worker

KEEPS = DeviceOptions(keeps_one=True)


@pytest.mark.parametrize(
    ("capacities", "options", "priorities"),
    [
        ((4, 8, 2), KEEPS, (0, -1, 0)),
        ((4, 4), KEEPS, (0, -1)),
        ((4,), KEEPS, (0,)),
        ((4, 8), DeviceOptions(), (0, 0)),
        ((8, 4), KEEPS, (-1, 0)),
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
        assert kept_worker(device.spec) == priorities.index(-1)
