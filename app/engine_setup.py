"""Builds the engine from the settings: device, memory, scheduler and profiling. None of these sees Settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from app.contract import Batching
from app.engine.cpu.device import CpuDevice
from app.engine.device import Device, DeviceOptions
from app.engine.engine import Engine
from app.engine.memory import Memory
from app.engine.profiling.cache import ProfileCache, default_folder
from app.engine.profiling.service import Profiling
from app.engine.streams import cuda
from app.engine.streams.device import StreamDevice
from app.lifecycle import Lifecycle
from app.machine import cpu_cores, memory_limit, resident_bytes
from app.models.placement import AS_LOADED, Placement
from app.scheduler.policies import policy_class
from app.scheduler.record import Entry, RecordingScheduler
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import ClassSpec, WorkerSpec
from app.settings import MIB, Settings

log = logging.getLogger("starling")

ANY_SIZE = 1 << 16  # default capacity of a worker: then only each model's largest batch limits its batches


def device_of(settings: Settings, gpu: int | None) -> Device:
    """The device: GPU number `gpu`, or the CPU if that is None."""
    policy = policy_class(settings.policy or Batching().policy)
    own_workers = policy.workers(settings.max_batch or Batching().max_batch)
    capacities = settings.workers or own_workers or (ANY_SIZE,)
    placement = Placement(precision=settings.precision, compile=settings.compile)
    options = DeviceOptions(
        placement=placement,
        push_ahead_ns=0 if own_workers else None,
        max_alive=settings.max_alive,
        graphs=settings.cuda_graphs,
        keeps_one=not own_workers,
    )
    device = make_device(gpu, capacities, settings.compute_threads, cpu_cores(), options)
    at_once, workers = device.spec.max_running, len(device.spec.workers)
    if own_workers and at_once < workers:
        log.warning(
            "policy %s: this device runs %d units at once, fewer than the %d workers that the policy is made for",
            policy.name, at_once, workers,
        )  # fmt: skip
    return device


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


def memory_of(settings: Settings, models: int, *, on_gpu: bool) -> Memory:
    """The memory budget, made before `models` models are loaded: what the process uses by then is not theirs."""
    limit, bodies = memory_limit(), int(settings.max_inflight_mib * MIB)
    memory = Memory(
        settings.pool_mib * MIB, settings.pool_mib * MIB, bodies,
        container=limit, resident=resident_bytes(), models=models, on_gpu=on_gpu,
    )  # fmt: skip
    if limit is not None and memory.bodies < bodies:
        log.warning(
            "bodies may take %d MiB, not %g: the container's memory is %d MiB",
            memory.bodies // MIB, settings.max_inflight_mib, limit // MIB,
        )  # fmt: skip
    return memory


def engine_of(
    settings: Settings,
    device: Device,
    lifecycle: Lifecycle,
    sink: Callable[[Entry], None] | None,
    memory: Memory,
    look: Callable[[], None],
) -> Engine:
    """The engine on this device. `sink` receives the scheduler's record, if one is kept. `look`: see Engine."""
    classes = ClassSpec(budget_ns=round(settings.preempt_budget_ms * 1e6), slowdown=settings.rt_slowdown)
    spec = replace(device.spec, classes=classes)
    scheduler = Scheduler(spec) if sink is None else RecordingScheduler(spec, sink=sink)
    return Engine(
        Profiling(device, ProfileCache(settings.profile_dir or default_folder()), settings.profile_budget_s),
        scheduler,
        hang_floor_s=settings.hang_floor_s,
        memory=memory,
        on_lost=lifecycle.fail,
        on_tick=lifecycle.tick,
        look=look,
    )
