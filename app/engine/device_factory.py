"""The device that a server or a measurement asks for: the CPU, or a GPU with the CPU beside it."""

from __future__ import annotations

from dataclasses import replace

from app.engine.cpu.device import CpuDevice
from app.engine.device import DeviceOptions
from app.engine.streams import cuda
from app.engine.streams.device import StreamDevice
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
    return StreamDevice(cuda.CudaRuntime(gpu), worker_specs(capacities, options), options, host)


def worker_specs(capacities: tuple[int, ...], options: DeviceOptions) -> tuple[WorkerSpec, ...]:
    """The workers of a GPU with their streams' priorities.

    Of several the largest, the last among equals, is kept for real-time work where that is asked for: the scheduler
    keeps the one of the highest priority.
    """
    kept = max(range(len(capacities)), key=lambda worker: (capacities[worker], worker))
    first = -1 if options.keeps_one and len(capacities) > 1 else 0
    return tuple(WorkerSpec(capacity, first if n == kept else 0) for n, capacity in enumerate(capacities))
