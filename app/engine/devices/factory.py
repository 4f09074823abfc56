"""The device that a server or a measurement asks for: the CPU, or a GPU with the CPU beside it."""

from __future__ import annotations

from dataclasses import replace

from app.engine.devices.base import DeviceOptions
from app.engine.devices.cpu.device import CpuDevice
from app.engine.devices.streams import cuda
from app.engine.devices.streams.device import StreamDevice
from app.models.placement import AS_LOADED
from app.scheduler.types import WorkerSpec


def make_device(
    gpu: int | None, capacities: tuple[int, ...], threads: int, cores: int, options: DeviceOptions
) -> CpuDevice | StreamDevice:
    """Workers of these capacities on GPU number `gpu`, or with `threads` each on the CPU where that is None."""
    if gpu is None:
        return CpuDevice(capacities, threads, cores, options)
    # One thread for each worker: what cannot be moved to the GPU runs beside the launcher, which must not wait for it.
    host = CpuDevice(capacities, 1, cores, replace(options, placement=AS_LOADED))
    workers = tuple(WorkerSpec(capacity) for capacity in capacities)
    return StreamDevice(cuda.CudaRuntime(gpu), workers, options, host)
