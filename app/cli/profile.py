"""`starling profile`: the batch times of one model on this machine, every size, as the server's workers run it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.named_model import load_model
from app.cli.profile_beside import ALL, Company, check_room, measure_beside
from app.cli.profile_text import progress, show
from app.errors import ConfigError
from app.settings import cpu_cores

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model
    from app.engine.device import Device
    from app.engine.profiling.cache import Key
    from app.engine.profiling.sampler import Sampler
    from app.scheduler.estimates.profile import ModelProfile

_ON_GPU = 4  # workers that are compared on a GPU, at most; streams are cheap, what they bring is not known
_IDLE_S = 1.0  # for the power of a machine that does nothing
_OTHERS_SHARE = 0.5  # of the budget, on top of it: for all other numbers of threads
_HANDOVER_SHARE = 10  # the hand-over may take this part of the budget: it is one figure for all sizes


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, from the options. `gpu`: its number, None for the CPU. `together`: numbers of units at once."""

    threads: int
    length: int
    repeats: int
    budget_s: float
    precision: str
    compile: bool
    gpu: int | None = None
    max_batch: int = 0
    together: tuple[int, ...] = ()


def register(cli: typer.Typer) -> None:
    """Add the command to the command line."""
    cli.command()(profile)


def profile(
    model: Annotated[str, typer.Argument(help="The model's name, or its folder; its highest version is measured.")],
    models: Annotated[
        str, typer.Option(envvar="STARLING_MODELS", help="A model repository folder, or a set that ships: demo, bench.")
    ] = "demo",
    extra: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME=SOURCE", help="One more model; SOURCE is a folder with model.toml."),
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=0, max=4096, help="Largest batch, rows. \\[the model's]", show_default=False)
    ] = 0,
    device: Annotated[
        str, typer.Option(envvar="STARLING_DEVICE", help="Where to run it: auto, cpu, cuda or cuda:N.")
    ] = "auto",
    threads: Annotated[
        int, typer.Option(min=0, help="Compute threads per worker. \\[cores - 1, at least 1]", show_default=False)
    ] = 0,
    precision: Annotated[
        str,
        typer.Option(envvar="STARLING_PRECISION", help="fp32 leaves the model as it is; bf16, fp16 compute in that."),
    ] = "fp32",
    compile: Annotated[bool, typer.Option(envvar="STARLING_COMPILE", help="Compile it with torch.compile.")] = False,
    workers: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Units at once, besides 1; can be repeated. \\[2, 4, ... while threads x units fit]"),
    ] = None,
    length: Annotated[
        int,
        typer.Option(
            min=0,
            help="Length of variable axes in the main table. \\[16, or that of the model's own samples]",
            show_default=False,
        ),
    ] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Most batches of each size; fewer where times agree.")] = 100,
    budget_s: Annotated[float, typer.Option(help="Seconds to measure; each size is run at least once.")] = 60,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Measure only what it is slowed by beside this one; can be repeated; all: beside each.",
        ),
    ] = None,
    suggest: Annotated[bool, typer.Option(help="Also compare numbers of threads and workers.")] = True,
    profile_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="STARLING_PROFILE_DIR", help="Where `starling serve` finds it. \\[the user's cache folder]"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the profile here, too.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a plot here (.png, .svg, .pdf).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure the batch times of a model: each size alone, and several batches at once; by length where that varies.

    Of a model in stages the time of each stage is measured, too.
    Sizes are visited in random order, pass by pass, until the median of each is known to 3 %. The result is kept where
    `starling serve` looks for it, and is what `starling simulate --profile` takes.

    With --beside instead: what a batch of it is slowed by while another model runs on another worker, and what that one
    keeps of its speed. Kept with the profiles.
    """
    if beside and plot is not None:
        raise ConfigError("plot: there is none of --beside")
    draw = _plotter() if plot is not None else None
    for path in (out, plot):
        if path is not None and not path.resolve().parent.is_dir():
            raise ConfigError(f"{path}: no such folder")
    from app import process

    process.quiet_native_libraries()
    process.keep_freed_memory()
    process.switch_threads_often()
    from app.engine.profiling.cache import ProfileCache, default_folder

    loaded = load_model(model, models, extra or [], max_batch)
    asked = Plan(
        threads=threads, length=length, repeats=repeats, budget_s=budget_s, precision=precision, compile=compile
    )
    plan = _plan(loaded, device, workers or [], asked)
    folder = profile_dir or default_folder()
    if beside:
        if plan.gpu is None:
            check_room(cpu_cores(), plan.threads, workers or [])
        others = _company(loaded, beside, models, extra or [], max_batch)
        company = Company(
            lambda rows: _device(replace(plan, max_batch=rows), 2), folder, length, repeats, budget_s, precision
        )
        measure_beside(loaded, others, company, out, as_json=as_json)
        return
    measured, key = _measure(loaded, plan, suggest)
    kept = ProfileCache(folder).store(key, measured)
    text = json.dumps(measured.to_dict(), indent=1)
    try:
        if out is not None:
            out.write_text(text + "\n", encoding="utf-8")
        if plot is not None and draw is not None:
            draw(measured, plot)
    except (OSError, ValueError) as exc:
        raise ConfigError(str(exc)) from exc
    if as_json:
        print(text)
    else:
        show(measured, kept)


def measure_model(model: Model, device: str, precision: str, budget_s: float, folder: Path) -> None:
    """Measure a model with the defaults of `starling profile`, and keep the result in the folder."""
    from app.engine.profiling.cache import ProfileCache

    asked = Plan(threads=0, length=0, repeats=100, budget_s=budget_s, precision=precision, compile=False)
    measured, key = _measure(model, _plan(model, device, [], asked), suggest=True)
    ProfileCache(folder).store(key, measured)


def _company(model: Model, beside: list[str], models: str, extra: list[str], max_batch: int) -> list[Model]:
    """The models to run beside it, each once; it may be one of them."""
    from app.models.repository import Repository

    names = Repository(models, extra).names() if ALL in beside else list(dict.fromkeys(beside))
    own = model.info.name
    return [model if name == own else load_model(name, models, extra, max_batch) for name in names]


def _plan(model: Model, device: str, workers: list[int], asked: Plan) -> Plan:
    """The plan as asked for, completed. Raises ConfigError that names the option at fault."""
    from app.engine.profiling.sampler import levels
    from app.engine.streams.cuda import device_index

    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ConfigError(f"device: expected auto, cpu, cuda or cuda:N, got {device!r}")
    if asked.precision not in ("fp32", "bf16", "fp16"):
        raise ConfigError(f"precision: expected fp32, bf16 or fp16, got {asked.precision!r}")
    if not asked.budget_s > 0:
        raise ConfigError(f"budget-s: expected more than 0 seconds, got {asked.budget_s:g}")
    cores = cpu_cores()
    if asked.threads > cores:
        raise ConfigError(f"threads: expected at most the {cores} cores of this machine, got {asked.threads}")
    gpu = device_index(device)
    threads = 1 if gpu is not None else asked.threads or max(1, cores - 1)
    together = sorted(set(workers)) or levels(cores // threads if gpu is None else _ON_GPU)
    if gpu is None and together and together[-1] > max(1, cores // threads):
        raise ConfigError(
            f"workers: expected at most {cores // threads}, {cores} cores by {threads} threads each, got {together[-1]}"
        )
    at_once = tuple(units for units in together if units > 1)
    return replace(asked, gpu=gpu, max_batch=model.info.batching.max_batch, threads=threads, together=at_once)


def _device(plan: Plan, workers: int) -> Device:
    """As the server makes it, with so many workers of the largest batch."""
    from app.engine.device import DeviceOptions
    from app.engine.device_factory import make_device
    from app.models.placement import Placement

    options = DeviceOptions(placement=Placement(precision=plan.precision, compile=plan.compile))
    return make_device(plan.gpu, (plan.max_batch,) * workers, plan.threads, cpu_cores(), options)


def _measure(model: Model, plan: Plan, suggest: bool) -> tuple[ModelProfile, Key]:
    """The profile with all that belongs to it, and its key. Other numbers of threads are measured more coarsely."""
    from app.engine.profiling import sizing
    from app.engine.profiling.sampler import Cell, Sampler, at_lengths, cells, coarser, shorter
    from app.models.checks.samples import most_length, own_length

    max_batch, inputs = plan.max_batch, model.info.client_inputs
    own = own_length(inputs, model.samples, plan.length)
    lengths = shorter(most_length(inputs, own), own)[0] if own else []
    compared = suggest and plan.gpu is None  # threads are the CPU's
    pairs = [pair for pair in sizing.pairs(cpu_cores()) if compared and pair[0] != plan.threads]
    *_, powers = coarser(max_batch)
    sizes = cells(range(1, max_batch + 1), plan.together)
    main = Sampler([*sizes, *at_lengths(powers, lengths)], most=plan.repeats)
    others: dict[int, Sampler] = {
        threads: Sampler([Cell(k, size) for t, k in pairs if t == threads for size in powers], most=plan.repeats)
        for threads, _ in pairs
    }
    samplers = [main, *others.values()]
    total_s = plan.budget_s * (1 + _OTHERS_SHARE * bool(others)) * (1 + 1 / _HANDOVER_SHARE)
    with progress(total_s, sum(len(sampler.times) for sampler in samplers)) as told:

        def settled(_: int) -> None:
            told(sum(sampler.done for sampler in samplers))

        keys, key, cell = _run(model, plan, main, settled)
        for threads, sampler in others.items():
            coarse = replace(plan, threads=threads, budget_s=plan.budget_s * _OTHERS_SHARE / len(others))
            _run(model, coarse, sampler, settled)
    measured = main.profile(None, own, cell=cell, **keys)
    line = measured.fit()
    extra = {
        **measured.extra,
        "fit": {"alpha_ms": line.alpha_ns / 1e6, "beta_ms": line.beta_ns / 1e6, "residual": line.residual},
        "best": {"batch": measured.best, "rows_per_s": measured.peak},
    }
    if suggest:
        found = [
            sizing.candidate(threads, units, sampler.table(1)[1], sampler.table(units))
            for threads, sampler in {plan.threads: main, **others}.items()
            for units in sorted({cell.units for cell in sampler.times})
        ]
        extra["suggested"] = sizing.suggestion(sizing.choose(found), max_batch, keys["push_depth"])
        extra["candidates"] = [one.to_dict() for one in found]
    return replace(measured, extra=extra), key


def _run(model: Model, plan: Plan, sampler: Sampler, told: Callable[[int], None]) -> tuple[dict[str, Any], Key, bool]:
    """Measure the sampler's cells on a device with the plan's threads. The keys of the profile that say how, its key,
    and whether the model runs step by step.

    Power is there where a counter is: of the GPU, or of the CPU's packages.
    """
    import torch

    from app.bench.run import in_loop
    from app.engine.profiling.bench import Bench, measure
    from app.engine.profiling.cache import key_of
    from app.engine.profiling.energy import find_meter
    from app.engine.profiling.sampler import coarser
    from app.models.checks.samples import short_lengths

    lengths = short_lengths(model.info.client_inputs, plan.length) if plan.length else None
    device = _device(plan, max(cell.units for cell in sampler.times))
    with Bench(device, model, plan.max_batch, lengths) as bench:
        bench.warm()
        key = key_of(bench.placed, device)
        meter = find_meter(getattr(device, "uuid", None))
        counted = meter.read(0.0, None).source in ("nvml", "powercap")
        if counted:
            threading.Event().wait(_IDLE_S)
            idle = meter.read(0.0, None).joules
        seconds = measure(bench, sampler, plan.budget_s, told)
        energy = meter.read(0.0, None)
        handover_ns = in_loop(bench.handover(plan.budget_s / _HANDOVER_SHARE))
        copies = bench.transfers(coarser(plan.max_batch)[-1])
    keys: dict[str, Any] = {
        "model": key.model,
        "device": key.device,
        "threads": key.threads,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "lengths": dict(bench.lengths),
        "push_depth": device.spec.push_depth,
        "precision": plan.precision,
        "handover_ms": handover_ns / 1e6,
    }
    if copies:
        parts = {"in": [one.in_ns for one in copies.values()], "out": [one.out_ns for one in copies.values()]}
        keys["transfer_ms"] = {str(size): sum(one) / 1e6 for size, one in copies.items()}
        keys["transfer_parts_ms"] = {
            part: {str(size): ns / 1e6 for size, ns in zip(copies, times, strict=True)} for part, times in parts.items()
        }
    if counted:
        busy = (energy.joules - idle) / seconds
        keys["power_w"] = {"idle": idle / _IDLE_S, "busy": busy, "counter": energy.source}
    return keys, key, bench.cell


def _plotter() -> Callable[[ModelProfile, Path], None]:
    try:
        from app.cli.profile_plot import batch_times
    except ModuleNotFoundError as exc:
        raise ConfigError(f"plot: {exc.name} is missing; install starling-serve[plot]") from None
    return batch_times
