"""Builds the engine from the settings: device, memory, scheduler and profiling. None of these sees Settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from app import process
from app.contract import Batching
from app.engine.device import Device, DeviceOptions
from app.engine.device_factory import make_device
from app.engine.engine import Engine
from app.engine.memory import Memory
from app.engine.profiling.cache import ProfileCache, cpu_name, default_folder
from app.engine.profiling.energy import find_meter
from app.engine.profiling.service import Profiling
from app.engine.record_file import RecordFile
from app.engine.streams import cuda
from app.engine.streams.device import StreamDevice
from app.errors import ConfigError
from app.lifecycle import Lifecycle
from app.machine import cpu_cores, memory_limit, resident_bytes
from app.models.placement import Placement
from app.scheduler.policies import policy_class
from app.scheduler.record import Entry, RecordingScheduler
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import ClassSpec
from app.settings import MIB, Settings

log = logging.getLogger("starling")

ANY_SIZE = 1 << 16  # default capacity of a worker: then only each model's largest batch limits its batches


def open_record(settings: Settings) -> RecordFile | None:
    """The file of `--record`, opened before anything starts, so that a wrong path is noticed. Raises ConfigError."""
    if settings.record is None:
        return None
    try:
        return RecordFile(settings.record)
    except OSError as exc:
        raise ConfigError(f"record: {settings.record}: {exc.strerror or exc}") from None


def _classes(settings: Settings) -> ClassSpec:
    return ClassSpec(budget_ns=round(settings.preempt_budget_ms * 1e6), slowdown=settings.rt_slowdown)


def resolve_workers(settings: Settings, models: Iterable[str], gpu: int | None) -> Settings:
    """The settings with `--workers auto` replaced by a number of workers and threads, which is logged.

    `starling profile` has suggested them for these models on this machine. One worker if it has suggested nothing, if
    its suggestions differ between models, or if they contradict `--threads`.
    """
    if settings.workers != "auto":
        return settings
    cache = ProfileCache(settings.profile_dir or default_folder())
    hardware = cpu_name() if gpu is None else cuda.name_of(gpu)
    found = {name: cache.suggestion(name, hardware, settings.precision) for name in models}
    sizes = {(size.threads, len(size.workers)) for size in found.values() if size is not None}
    threads, workers = sizes.pop() if len(sizes) == 1 else (0, 1)
    if not threads:
        why = "its models need different ones" if sizes else "`starling profile` has suggested nothing for its models"
    elif settings.threads not in (None, threads):
        why, workers = f"the {threads} thread(s) that `starling profile` suggested are not those of --threads", 1
    else:
        why = f"as `starling profile {next(name for name, size in found.items() if size)}` suggested"
    chosen: dict[str, object] = {"workers": (ANY_SIZE,) * workers if workers > 1 else ()}
    if gpu is None and threads and settings.threads is None:
        chosen["threads"] = threads
    settings = settings.model_copy(update=chosen)
    of = "" if gpu is not None else f" of {settings.compute_threads} thread(s)"
    log.info("workers auto: %d%s, %s", workers, of, why)
    return settings


def device_of(settings: Settings, gpu: int | None) -> Device:
    """The device: GPU number `gpu`, or the CPU if that is None."""
    policy = policy_class(settings.policy or Batching().policy)
    assert settings.workers != "auto"
    capacities = settings.workers or (ANY_SIZE,)
    if not settings.workers and policy.owns_device:
        capacities = policy.workers(settings.max_batch or Batching().max_batch)
    placement = Placement(precision=settings.precision, compile=settings.compile)
    ahead_ms = settings.push_ahead_ms
    if ahead_ms is None and policy.owns_device:
        ahead_ms = 0
    options = DeviceOptions(
        placement=placement,
        push_ahead_ns=None if ahead_ms is None else round(ahead_ms * 1e6),
        max_alive=settings.max_alive,
        graphs=settings.cuda_graphs,
        keeps_one=not policy.owns_device,
    )
    device = make_device(gpu, capacities, settings.compute_threads, cpu_cores(), options)
    at_once, workers = device.spec.max_running, len(device.spec.workers)
    if policy.owns_device and at_once < workers:
        log.warning(
            "policy %s: this device runs %d units at once, fewer than the %d workers that the policy is made for",
            policy.name, at_once, workers,
        )  # fmt: skip
    return device


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
    spec = replace(device.spec, classes=_classes(settings))
    scheduler = Scheduler(spec) if sink is None else RecordingScheduler(spec, sink=sink)
    return Engine(
        Profiling(
            device,
            ProfileCache(settings.profile_dir or default_folder()),
            settings.profile_budget_s,
            threads=process.thread_times,
        ),
        scheduler,
        hang_floor_s=settings.hang_floor_s,
        memory=memory,
        on_lost=lifecycle.fail,
        on_tick=lifecycle.tick,
        meter=find_meter(device.uuid if isinstance(device, StreamDevice) else None),
        look=look,
    )
