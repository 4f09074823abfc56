"""Measures models in the engine of `starling serve`, which has no calls meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.errors import ConfigError
from app.machine import cpu_cores
from app.settings import Settings, settings_from
from planner.commands.event_loop import in_loop
from planner.commands.output import progress

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model
    from app.engine.engine import Engine
    from app.engine.executor import Executor
    from app.engine.pool import Slots
    from app.engine.profiling.measuring import Measuring
    from app.engine.profiling.profiled_model import ProfiledModel
    from app.scheduler.estimates.evidence import UnitTime
    from app.scheduler.estimates.profile import Profile

_ON_GPU = 4  # workers on a GPU; streams are cheap, but their benefit is not known

T = TypeVar("T")


def settings_of(workers: int, budget_s: float, folder: Path | None, **given: Any) -> Settings:
    """The settings of a server with so many workers of any size; 0: as many as have cores, on a GPU four.

    `given`: device, threads, precision, compile, as flags of `serve`. Raises ConfigError for a wrong option.
    """
    if not 0 < budget_s < 1e9:
        raise ConfigError(f"budget-s: expected more than 0 seconds and below 1e9, got {budget_s:g}")
    settings = settings_from({**given, "threads": given.get("threads") or None, "profile_dir": folder})
    from app.engine.streams.cuda import device_index
    from app.engine_setup import ANY_SIZE

    most = _ON_GPU
    if device_index(settings.device) is None:
        cores, threads = cpu_cores(), settings.compute_threads
        most = max(1, cores // threads)
        if workers > most:
            raise ConfigError(
                f"workers: expected at most {most}, {cores} cores by {threads} threads each, got {workers}"
            )
    capacities = (ANY_SIZE,) * (workers or most)
    return settings.model_copy(update={"workers": capacities, "profile_budget_s": budget_s})


@asynccontextmanager
async def idle_engine(settings: Settings, models: int = 1) -> AsyncIterator[Engine]:
    """The engine of a server with these settings, before `models` models are loaded."""
    from app.engine.streams.cuda import device_index
    from app.engine_setup import device_of, engine_of, memory_of
    from app.lifecycle import Lifecycle

    gpu = device_index(settings.device)
    memory = memory_of(settings, models, on_gpu=gpu is not None)
    device = device_of(settings, gpu)
    async with engine_of(settings, device, Lifecycle(), sink=None, memory=memory, look=lambda: None) as engine:
        yield engine


@asynccontextmanager
async def loaded(engine: Engine, model: Model, length: int = 0) -> AsyncIterator[ProfiledModel]:
    """The model in the engine, with rows in its spare slots. `length`: of variable axes; 0: that of its own rows.

    Raises ConfigError if a server would not measure it.
    """
    from app.engine.profiling.warmup import lay_out
    from app.models.checks.samples import short_lengths, stretched

    # Other policies have tables, and solving them disturbs what is measured; nobody waits in its queue.
    batching = model.info.batching.model_copy(update={"policy": "no_wait", "max_queue": model.info.batching.max_batch})
    try:
        served = await engine.start(
            replace(model, info=replace(model.info, batching=batching), checks=replace(model.checks, profile=True))
        )
    except ConfigError as exc:
        raise ConfigError(f"model {model.info.name!r}: {exc}") from exc
    profiled = served.profiled  # type: ignore[attr-defined]
    if profiled.unfit is not None:
        raise ConfigError(f"model {model.info.name!r}: {profiled.unfit}") from profiled.unfit
    if length:
        inputs = model.info.client_inputs
        profiled.rows = [stretched(inputs, row, short_lengths(inputs, length)) for row in profiled.rows]
    lay_out(profiled.executor, profiled.spare, profiled.rows, 0)
    engine.device.arrive(profiled.executor, profiled.spare)
    yield profiled
    await engine.stop(served)


async def repeated(measuring: Measuring, executor: Executor, worker: int, slots: Slots, least_ns: int = 0) -> UnitTime:
    """The median of batches that follow one another on a worker for at least `least_ns`.

    The first does not count: it pays for waking up. Raises RuntimeError when the model fails.
    """
    from app.scheduler.estimates.evidence import UnitTime

    timed: list[UnitTime] = []
    begun = measuring.clock()
    while len(timed) < 2 or measuring.clock() - begun < least_ns:
        (one,) = await measuring.measure(executor, [(worker, slots)])
        timed.append(one.timed)
    return UnitTime.median(timed[1:])


def measure(model: Model, settings: Settings, length: int = 0) -> tuple[Profile, Path | None]:
    """Measure the profile. Returns it, and the file that stores it, if there is one. Raises ConfigError."""
    return in_loop(_measured(model, settings, length))


async def _measured(model: Model, settings: Settings, length: int) -> tuple[Profile, Path | None]:
    from app.engine.profiling.cache import default_folder
    from app.engine.profiling.profiled_model import Origin

    budget_s = settings.profile_budget_s
    async with idle_engine(settings) as engine, loaded(engine, model, length) as profiled:
        with progress(f"measuring, at most {budget_s:.0f} s"):
            await engine.profiling.measure_alone(profiled)
    key, profile = profiled.key, profiled.profile
    if profiled.origin is not Origin.MEASURED or key is None:
        raise ConfigError(
            f"model {model.info.name!r}: it could not be measured: a batch failed, or one row takes over a tenth of "
            f"--budget-s {budget_s:g}"
        )
    file = (settings.profile_dir or default_folder()) / key.file_name
    profile = replace(profile, model=key.model, device=key.device, threads=key.threads)
    return profile, file if file.is_file() else None
