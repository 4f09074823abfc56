"""What `starling size` sizes: a model's profiles, what a request costs beside its batch, and how it is served."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.options import check_precision, find_model, load_model
from app.errors import ConfigError
from app.scheduler.estimates.profile import ModelProfile
from app.settings import cpu_cores

if TYPE_CHECKING:
    from app.contract import Batching, Model, ModelSource
    from app.engine.profiling.cache import Key, ProfileCache

#: Microseconds where nothing was measured: above what four floats as JSON cost, below what a thousand do.
ASSUMED_US = 200.0
_HTTP_KEY = "http_us"  # of a stored profile


@dataclass(frozen=True, slots=True)
class HttpCost:
    """Microseconds of CPU of one request beside its batch. `source`: given, measured or assumed."""

    us: float
    source: str


@dataclass(frozen=True, slots=True)
class Subject:
    """`profiles`: one for each number of threads. `serve`: the command that serves the model.

    `cores`: of the machine, where it computes on the CPU and they are known. `batching`: fields of `sim.fleet.Setup`
    that follow from how it is batched.
    """

    name: str
    profiles: tuple[ModelProfile, ...]
    http: HttpCost
    serve: str
    cores: int | None = None
    batching: Mapping[str, Any] = field(default_factory=dict)


def from_file(text: str) -> Subject:
    """The profile of a file, or of a made-up device. Raises ValueError, OSError."""
    from app.sim import options

    profile = options.profile(text)
    device = re.fullmatch(r"cpu .*, (\d+) cores", profile.device)
    return Subject(
        profile.model, (profile,), _http_of(profile), "starling serve MODEL_FOLDER", int(device[1]) if device else None
    )


def stored(
    name: str, models: str, device: str, precision: str, folder: Path | None, measure_s: float | None
) -> Subject:
    """The model's profiles on this machine. `measure_s`: seconds to measure it first, and then its HTTP cost; or None.

    Raises ConfigError where there is no such model, or no profile of it.
    """
    from app import process

    process.quiet_native_libraries()
    process.keep_freed_memory()
    process.switch_threads_often()
    from app.cli.profile_measure import measure_model
    from app.engine.profiling.cache import ProfileCache, default_folder

    name = name or _only(models)
    source, loaded = find_model(name, models, []), load_model(name, models, [], 0)
    cache = ProfileCache(folder or default_folder())
    key, on_cpu = _key(loaded, device, precision)
    if measure_s is not None:
        if not measure_s > 0:
            raise ConfigError(f"budget-s: expected more than 0 seconds, got {measure_s:g}")
        measure_model(loaded, device, precision, measure_s, cache.folder)
    profiles = _profiles(cache, key, loaded.info.batching.max_batch)
    if not profiles:
        raise ConfigError(
            f"model {loaded.info.name!r}: no profile of it on this {key.device!r} in {cache.folder}; measure it with "
            f"`starling profile {shlex.quote(name)}`, or here with --measure"
        )
    if measure_s is not None:
        profiles = _with_http(cache, key, profiles, loaded, source, device)
    command = f"starling serve {_place(loaded.info.name, models, source)}"
    if precision != "fp32":
        command += f" --precision {precision}"
    http = next((cost for one in profiles if (cost := _http_of(one)).source == "measured"), _http_of(profiles[0]))
    cores = cpu_cores() if on_cpu else None
    return Subject(loaded.info.name, profiles, http, command, cores, _batching(loaded.info.batching))


def _only(models: str) -> str:
    from app.models.repository import Repository

    names = Repository(models).names()
    if len(names) != 1:
        raise ConfigError(f"model: expected --model, one of {', '.join(names)}" if names else "models: there is none")
    return names[0]


def _key(model: Model, device: str, precision: str) -> tuple[Key, bool]:
    """Where the model's profile is kept, for one thread, and whether that is of the CPU."""
    from app.engine.profiling.cache import Key, architecture_of, cpu_name
    from app.engine.streams.cuda import device_index, name_of
    from app.models.placement import Placement, place

    check_precision(precision)
    gpu = device_index(device)
    placed = place(model, Placement(precision=precision))
    hardware = cpu_name() if gpu is None else name_of(gpu)
    return Key(model.info.name, architecture_of(placed), hardware, 1), gpu is None


def _profiles(cache: ProfileCache, key: Key, max_batch: int) -> tuple[ModelProfile, ...]:
    """Those that are kept, by their number of threads."""
    keys = (replace(key, threads=threads) for threads in range(1, cpu_cores() + 1))
    return tuple(profile for one in keys if (profile := cache.load(one, max_batch)) is not None)


def _with_http(
    cache: ProfileCache, key: Key, profiles: tuple[ModelProfile, ...], model: Model, source: ModelSource, device: str
) -> tuple[ModelProfile, ...]:
    """The profiles with the measured cost of a request, kept so."""
    from app.bench.http_cost import measure_http_us

    flags = ["--model", f"{model.info.name}={source.folder}", "--device", device, "--profile-budget-s", "0"]
    us = round(measure_http_us(model.info.name, [*flags, "--profile-dir", str(cache.folder)]), 1)
    with_cost = tuple(replace(one, extra={**one.extra, _HTTP_KEY: us}) for one in profiles)
    for one in with_cost:
        cache.store(replace(key, threads=one.threads or 1), one)
    return with_cost


def _http_of(profile: ModelProfile) -> HttpCost:
    us = profile.extra.get(_HTTP_KEY)
    good = isinstance(us, int | float) and not isinstance(us, bool) and us >= 0
    return HttpCost(float(us), "measured") if good and us is not None else HttpCost(ASSUMED_US, "assumed")


def _place(name: str, models: str, source: ModelSource) -> str:
    """The flags that serve this model, and no other where that can be said."""
    from app.models.repository import SETS, Repository

    if models in SETS and name in SETS[models]:
        alone = len(SETS[models]) == 1
        return f"--models {models}" if alone else f"--model {name}={_short(source.folder)}"
    if Path(models).is_dir() and Repository(models).names() == [name]:
        return shlex.quote(models)
    return f"--model {shlex.quote(f'{name}={_short(source.folder)}')}"


def _short(folder: Path) -> str:
    """The folder as seen from here, where it is below."""
    path = os.path.relpath(folder)
    return str(folder) if path.startswith("..") else path


def _batching(batching: Batching) -> dict[str, Any]:
    return {
        "policy": batching.policy,
        "objective": batching.objective,
        "max_queue": batching.max_queue,
        "max_delay_ns": round(batching.max_delay_ms * 1e6),
        "length_buckets": batching.length_buckets,
        "reorder": batching.reorder,
        "complete_wait": batching.complete_wait,
    }
