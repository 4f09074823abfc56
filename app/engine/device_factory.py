"""Makes the device that a server or a measurement asks for: the CPU, or a GPU with the CPU beside it."""

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
    """Workers of these capacities on GPU number `gpu`, or, if that is None, with `threads` each on the CPU."""
    if gpu is None:
        return CpuDevice(capacities, threads, cores, options)
    # One thread for each worker: models that cannot be moved to the GPU must not hold up the launcher.
    host = CpuDevice(capacities, 1, cores, replace(options, placement=AS_LOADED))
    return StreamDevice(cuda.CudaRuntime(gpu), worker_specs(capacities, options), options, host)


def worker_specs(capacities: tuple[int, ...], options: DeviceOptions) -> tuple[WorkerSpec, ...]:
    """The workers of a GPU with their streams' priorities.

    With `keeps_one` the largest of several, the last among equals, gets the highest priority: the scheduler keeps that
    one for real-time work.
    """
    kept = max(range(len(capacities)), key=lambda worker: (capacities[worker], worker))
    first = -1 if options.keeps_one and len(capacities) > 1 else 0
    return tuple(WorkerSpec(capacity, first if n == kept else 0) for n, capacity in enumerate(capacities))
