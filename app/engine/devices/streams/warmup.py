"""Before a model serves on a device of streams: its graphs are captured, and every worker runs every size.

Whatever happens at first use, an allocation, a kernel that is loaded, a library that makes its plans, may hold up the
whole device, and must not happen to a call.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from app.engine.devices.base import Completion, Job, Ran, Report
from app.engine.devices.pool import Slots
from app.engine.devices.streams.executor import StagedExecutor
from app.engine.devices.streams.lanes import Lane
from app.engine.devices.streams.runtime import Runtime
from app.errors import ConfigError


class Launcher(Protocol):
    """What a trial needs of the device."""

    runtime: Runtime
    lanes: list[Lane]
    lost: str | None

    def submit(self, lane: Lane, job: Job, report: Report) -> None: ...
    def send(self, method: Callable[..., None], *args: Any) -> bool: ...
    def outcome(self, done: Future[Any]) -> Any: ...


def try_on_each(device: Launcher, executor: StagedExecutor, slots: Slots, size: int) -> list[Ran]:
    """Run the rows in `slots` as a batch of `size` on each worker that takes it, after its graph has been made.

    Twice, and what the second run gave is returned: the first has costs of its own. Blocks; on any thread but the
    device's. Raises what the model raises.
    """
    rans: list[Ran] = []
    for lane in device.lanes:
        if lane.spec.capacity < size:
            continue
        if executor.graphs:
            _prepare(device, executor, lane, size)
        job = Job(-1, executor, slots, size)
        _run(device, lane, job)
        rans.append(_run(device, lane, job))
    return rans


def _run(device: Launcher, lane: Lane, job: Job) -> Ran:
    done: Future[Completion] = Future()
    device.submit(lane, job, done.set_result)
    completion: Completion = device.outcome(done)
    if completion.ran is None:
        raise completion.cause or ConfigError(completion.message)
    return completion.ran


def _prepare(device: Launcher, executor: StagedExecutor, lane: Lane, size: int) -> None:
    """Captures are the launcher's: it alone enqueues work, so nothing of others gets into them."""
    done: Future[None] = Future()

    def prepare() -> None:
        try:
            if device.lost is not None:
                raise ConfigError(f"the device is lost: {device.lost}")
            executor.prepare(device.runtime, lane.index, size)
        except BaseException as exc:
            done.set_exception(exc)
        else:
            done.set_result(None)

    if not device.send(prepare):
        raise ConfigError("the device is closed")
    device.outcome(done)
