"""Measures the profile of a model: batch times as the server's workers run it, hand-over, power, suggested sizes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import output
from app.errors import ConfigError
from app.machine import cpu_cores

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model
    from app.engine.device import Device
    from app.engine.profiling.cache import Key
    from app.engine.profiling.sampler import Sampler
    from app.scheduler.estimates.profile import ModelProfile

REPEATS = 100  # the default of --repeats: the most batches of each size
_ON_GPU = 4  # the most workers compared on a GPU; streams are cheap, but their benefit is not known
_IDLE_S = 1.0  # to measure the power of the idle machine
_OTHERS_SHARE = 0.5  # of the budget, in addition to it: for all other numbers of threads
_HANDOVER_SHARE = 10  # the hand-over takes this part of the budget: it is one figure for all sizes


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """What to measure. `gpu`: its number, None for the CPU. `together`: numbers of units at once, besides 1."""

    threads: int = 0
    length: int = 0
    repeats: int = REPEATS
    budget_s: float = 60
    precision: str = "fp32"
    compile: bool = False
    gpu: int | None = None
    max_batch: int = 0
    together: tuple[int, ...] = ()


def measure_model(model: Model, device: str, precision: str, budget_s: float, folder: Path) -> None:
    """Measure a model with the defaults of `starling profile`, and keep the result in the folder."""
    measure(model, complete(MeasureOptions(budget_s=budget_s, precision=precision), model, device), folder)


def complete(asked: MeasureOptions, model: Model, device: str, workers: Sequence[int] = ()) -> MeasureOptions:
    """The options, completed from model and device. Raises ConfigError for a wrong option."""
    from app.engine.profiling.sampler import concurrency_levels
    from app.engine.streams.cuda import device_index

    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ConfigError(f"device: expected auto, cpu, cuda or cuda:N, got {device!r}")
    if not asked.budget_s > 0:
        raise ConfigError(f"budget-s: expected more than 0 seconds, got {asked.budget_s:g}")
    cores = cpu_cores()
    if asked.threads > cores:
        raise ConfigError(f"threads: expected at most the {cores} cores of this machine, got {asked.threads}")
    gpu = device_index(device)
    threads = 1 if gpu is not None else asked.threads or max(1, cores - 1)
    together = sorted(set(workers)) or concurrency_levels(cores // threads if gpu is None else _ON_GPU)
    if gpu is None and together and together[-1] > max(1, cores // threads):
        raise ConfigError(
            f"workers: expected at most {cores // threads}, {cores} cores by {threads} threads each, got {together[-1]}"
        )
    at_once = tuple(units for units in together if units > 1)
    return replace(asked, gpu=gpu, max_batch=model.info.batching.max_batch, threads=threads, together=at_once)


def make_device(plan: MeasureOptions, workers: int) -> Device:
    """A device as in the server, with so many workers of the largest batch."""
    from app.engine import device_factory
    from app.engine.device import DeviceOptions
    from app.models.placement import Placement

    options = DeviceOptions(placement=Placement(precision=plan.precision, compile=plan.compile))
    return device_factory.make_device(plan.gpu, (plan.max_batch,) * workers, plan.threads, cpu_cores(), options)


def measure(
    model: Model, plan: MeasureOptions, folder: Path, *, suggest: bool = True
) -> tuple[ModelProfile, Path | None]:
    """Measure the profile. Returns it, and the file in the folder that stores it.

    With `suggest`, other numbers of threads are measured at fewer sizes, and kept unless a profile is there already.
    """
    from app.engine.profiling import sizing
    from app.engine.profiling.cache import ProfileCache
    from app.engine.profiling.sampler import Cell, Sampler, at_lengths, cells, length_sets, size_sets
    from app.models.checks.samples import most_length, own_length

    max_batch, inputs = plan.max_batch, model.info.client_inputs
    own = own_length(inputs, model.samples, plan.length)
    lengths = length_sets(most_length(inputs, own), own)[0] if own else []
    cores = sizing.cores_for_workers(cpu_cores()) if plan.gpu is None else None  # threads are the CPU's
    pairs = sizing.counts_to_compare(cores) if suggest and cores else []
    others = sorted({threads for threads, _ in pairs} - {plan.threads})
    *_, powers = size_sets(max_batch)
    sizes = cells(range(1, max_batch + 1), plan.together)
    runs = {plan: Sampler([*sizes, *at_lengths(powers, lengths)], most=plan.repeats)}
    for threads in others:
        coarse = replace(plan, threads=threads, budget_s=plan.budget_s * _OTHERS_SHARE / len(others))
        wanted = [Cell(units, size) for count, units in pairs if count == threads for size in powers]
        runs[coarse] = Sampler(wanted, most=plan.repeats)
    total_s = sum(one.budget_s for one in runs) * (1 + 1 / _HANDOVER_SHARE)
    samplers = runs.values()
    number = sum(len(sampler.visits) for sampler in samplers)
    with progress(total_s, number, lambda: sum(sampler.done for sampler in samplers)) as settled:
        profiles = dict(_run(model, one, sampler, own, settled) for one, sampler in runs.items())
    (key, measured), *coarser_ones = profiles.items()
    extra = {
        **measured.extra,
        "fit": measured.fit,
        "best": {"batch": measured.best, "rows_per_s": measured.peak},
    }
    if suggest:
        found = [
            sizing.Candidate(profile, units) for profile in profiles.values() for units in (1, *profile.concurrency_ns)
        ]
        told = sizing.compare(found, cores)
        extra["suggested"] = sizing.suggestion(sizing.choose(told), max_batch, measured.extra["push_depth"])
        extra["candidates"] = [one.to_dict() for one in told]
    measured, cache = replace(measured, extra=extra), ProfileCache(folder)
    for its_key, profile in coarser_ones:
        if cache.load(its_key, max_batch) is None:
            cache.store(its_key, profile)
    return measured, cache.store(key, measured)


def _run(
    model: Model, plan: MeasureOptions, sampler: Sampler, own: int, settled: Callable[[int], None]
) -> tuple[Key, ModelProfile]:
    """Measure the sampler's cells on a device with the plan's threads. `own`: the rows' own length.

    The profile has the power if a counter of the GPU or of the CPU's packages can be read.
    """
    import torch

    from app.bench.run import in_loop
    from app.engine.device import TRIED_TOKENS
    from app.engine.profiling import offline
    from app.engine.profiling.cache import key_of
    from app.engine.profiling.energy import find_meter
    from app.engine.profiling.profiled_model import now_utc

    device = make_device(plan, max(cell.units for cell in sampler.visits))
    with offline.OfflineBench(device, model, length=plan.length) as bench:
        benched = bench.models[0]
        key = key_of(benched.executor.model, device)
        meter = find_meter(getattr(device, "uuid", None))
        counted = meter.read(0.0, None).source in ("nvml", "powercap")
        if counted:
            threading.Event().wait(_IDLE_S)
            idle = meter.read(0.0, None).joules
        seconds = offline.measure(bench, sampler, plan.budget_s, settled)
        energy = meter.read(0.0, None)
        handover_ns = in_loop(bench.handover(plan.budget_s / _HANDOVER_SHARE))
    keys: dict[str, Any] = {}
    if counted:
        busy = (energy.joules - idle) / seconds
        keys["power_w"] = {"idle": idle / _IDLE_S, "busy": busy, "counter": energy.source}
    return key, sampler.profile(
        None, own,
        cell=benched.executor.steps is not None,
        written=TRIED_TOKENS // 2 if model.writes else 0,
        model=key.model, device=key.device, threads=key.threads, made=now_utc(), torch=torch.__version__,
        lengths=dict(benched.lengths), push_depth=device.spec.push_depth, precision=plan.precision,
        handover_ms=handover_ns / 1e6, **keys,
    )  # fmt: skip


@contextmanager
def progress(total_s: float, sizes: int, known: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """A bar of the elapsed time and the number of settled sizes. Yields a function that updates it."""
    from rich.progress import TextColumn, TimeElapsedColumn

    counts = TextColumn(f"of at most {total_s:.0f} s, {{task.completed:.0f}} of {sizes} sizes known")
    with output.progress("measuring", TimeElapsedColumn(), counts, total=sizes) as update:
        yield lambda _: update(completed=known())
