"""Before a model serves on a device of streams: its graphs are captured, and every worker runs every size.

Whatever happens at first use, an allocation, a kernel that is loaded, a library that makes its plans, may hold up the
whole device, and must not happen to a call.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from app.engine.devices.cpu.executor import Ran
from app.engine.devices.cpu.worker import Completion, Job
from app.errors import ConfigError

if TYPE_CHECKING:
    from app.engine.devices.streams.device import Lane, StreamDevice
    from app.engine.devices.streams.executor import StagedExecutor


def rehearse(device: StreamDevice, executor: StagedExecutor, size: int) -> list[Ran]:
    """Run the first `size` slots as a batch on each worker that takes so many, after its graph has been made.

    Twice, and what the second gave is returned: the first has costs of its own. Blocks; on any thread but the device's.
    Raises what the model raises.
    """
    rans: list[Ran] = []
    for lane in device.lanes:
        if lane.spec.capacity < size:
            continue
        if executor.graphs:
            _prepare(device, executor, lane, size)
        job = Job(-1, executor, range(size), size)
        _run(device, lane, job)
        rans.append(_run(device, lane, job))
    return rans


def _run(device: StreamDevice, lane: Lane, job: Job) -> Ran:
    done: Future[Completion] = Future()
    device.submit(lane, job, done.set_result)
    completion: Completion = device.outcome(done)
    if completion.ran is None:
        raise completion.cause or ConfigError(completion.message)
    return completion.ran


def _prepare(device: StreamDevice, executor: StagedExecutor, lane: Lane, size: int) -> None:
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
