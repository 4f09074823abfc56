"""The device that a server or a measurement asks for: the CPU, or a GPU with the CPU beside it."""

from __future__ import annotations

from dataclasses import replace

from app.engine.devices.base import DeviceOptions
from app.engine.devices.cpu.device import CpuDevice
from app.engine.devices.streams import cuda
from app.engine.devices.streams.device import StreamDevice
from app.errors import ConfigError
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
    workers = worker_specs(capacities, options)
    if options.guard and not cuda.guards():
        raise ConfigError("cuda_guard: this torch captures no IF nodes (torch 2.13 for CUDA 12.4 or later does)")
    return StreamDevice(cuda.CudaRuntime(gpu, options.sm_share), workers, options, host)


def worker_specs(capacities: tuple[int, ...], options: DeviceOptions) -> tuple[WorkerSpec, ...]:
    """The workers of a GPU with their streams' priorities. Raises ConfigError.

    Of several the largest, the last among equals, is kept for real-time work where that is asked for: the scheduler
    keeps the one of the highest priority. The others are put below 0 where they share a part of the SMs.
    """
    others = 0
    if options.sm_share is not None:
        if options.guard:
            raise ConfigError(
                "best_effort_sms: expected no cuda_guard: an IF node belongs to the GPU's primary context, and what it"
                " guards to another"
            )
        if not (options.keeps_one and len(capacities) > 1):
            raise ConfigError("best_effort_sms: expected several workers, of which one is kept for real-time calls")
        others = 1
    kept = max(range(len(capacities)), key=lambda worker: (capacities[worker], worker))
    first = -1 if options.keeps_one and len(capacities) > 1 else others
    return tuple(WorkerSpec(capacity, first if n == kept else others) for n, capacity in enumerate(capacities))
