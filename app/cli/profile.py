"""`starling profile`: measures the batch times of a model on this machine, as the server's workers run it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import output
from app.cli.options import (
    DeviceOption,
    ExtraOption,
    JsonOption,
    ModelsOption,
    PrecisionOption,
    ProfileDirOption,
    load_model,
    refuse,
    typed,
)
from app.cli.profile_beside import ALL, Pairs, check_room, measure_pairs
from app.cli.profile_measure import REPEATS, MeasureOptions, complete, measure
from app.cli.profile_stages import REPEATS as STAGE_REPEATS
from app.cli.profile_stages import Slices, measure_stages, parse_stages
from app.errors import ConfigError
from app.machine import cpu_cores

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.scheduler.estimates.profile import ModelProfile

#: Options without a meaning for stages, which are timed one after the other on the CPU.
_NOT_OF_STAGES = ("device", "precision", "compile", "workers", "beside", "suggest", "profile_dir")


def profile(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The model's name, or its folder; its highest version is measured.")],
    models: ModelsOption = "demo",
    extra: ExtraOption = None,
    max_batch: Annotated[
        int, typer.Option(min=0, max=4096, help="Largest batch, rows. \\[the model's]", show_default=False)
    ] = 0,
    device: DeviceOption = "auto",
    threads: Annotated[
        int, typer.Option(min=0, help="Compute threads per worker. \\[cores - 1, at least 1]", show_default=False)
    ] = 0,
    precision: PrecisionOption = "fp32",
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
    repeats: Annotated[
        int,
        typer.Option(
            min=0,
            help="Most batches of each size; fewer where times agree. \\[100; 15 with --stages]",
            show_default=False,
        ),
    ] = 0,
    budget_s: Annotated[float, typer.Option(help="Seconds to measure; each size is run at least once.")] = 60,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Measure only what it is slowed by beside this one; can be repeated; all: beside each.",
        ),
    ] = None,
    stages: Annotated[
        str,
        typer.Option(
            metavar="INT|auto",
            help="Measure only what cutting it into stages of equal time gives; auto: its own, or several numbers.",
            show_default=False,
        ),
    ] = "",
    cuts: Annotated[
        list[str] | None,
        typer.Option(help="As --stages, cut after this submodule, a name of named_modules; can be repeated."),
    ] = None,
    suggest: Annotated[bool, typer.Option(help="Also compare numbers of threads and workers.")] = True,
    profile_dir: ProfileDirOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the profile here, too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the batch times of a model: each size alone, and several batches at once; by length where that varies.

    Of a model in stages the time of each stage is measured, too.
    Sizes are visited pass by pass, from the second in random order, until each is known to 1.5 %. The result is kept
    where `starling serve` looks for it, and is what `starling simulate --profile` takes.

    With --beside instead: what a batch of it is slowed by while another model runs on another worker, and what that one
    keeps of its speed. Kept with the profiles.

    With --stages or --cuts instead: the times of its stages on the CPU by batch size, and what the cuts cost.
    """
    in_stages = bool(stages or cuts)
    number = parse_stages(stages, cuts or [])
    if in_stages:
        refuse(typed(context), _NOT_OF_STAGES, "has no meaning with --stages or --cuts")
    if out is not None and not out.absolute().parent.is_dir():  # say so before minutes of measuring
        raise ConfigError(f"{out}: no such folder")
    from app import process

    process.prepare()
    from app.engine.profiling.cache import default_folder
    from app.models.repository import Repository

    folder = profile_dir or default_folder()
    loaded = load_model(model, models, extra or [], max_batch)
    asked = MeasureOptions(threads, length, repeats or REPEATS, budget_s, precision, compile)
    found: Slices | Pairs | MeasuredProfile
    if in_stages:
        asked = replace(asked, threads=threads or max(1, cpu_cores() - 1), repeats=repeats or STAGE_REPEATS)
        found = measure_stages(loaded, number, cuts or [], asked)
    elif beside:
        plan = complete(asked, loaded, device, workers or [])
        if plan.gpu is None:
            check_room(cpu_cores(), plan.threads, workers or [])
        names = Repository(models, extra or []).scan() if ALL in beside else dict.fromkeys(beside)
        own = loaded.info.name
        others = [loaded if name == own else load_model(name, models, extra or [], max_batch) for name in names]
        found = measure_pairs(loaded, others, plan, folder)
    else:
        found = MeasuredProfile(
            *measure(loaded, complete(asked, loaded, device, workers or []), folder, suggest=suggest)
        )
    text = json.dumps(found.as_dict(), indent=1)
    if out is not None:
        try:
            out.write_text(text + "\n", encoding="utf-8")
        except OSError as exc:
            raise ConfigError(str(exc)) from exc
    if as_json:
        print(text)
    else:
        found.show()


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile, and the file that stores it."""

    profile: ModelProfile
    kept: Path | None

    def as_dict(self) -> dict[str, Any]:
        return self.profile.to_dict()

    def show(self) -> None:
        """Print the table, the fitted line, and the suggested flags."""
        from app.sim.report import aligned

        measured = self.profile
        extra, together, line = measured.extra, measured.concurrency_ns, measured.fit
        rows = [["rows", "ms", "rows/s", "error", "spread", "runs", *(f"ms, {count} at once" for count in together)]]
        for size, ns in enumerate(measured.batch_ns, 1):
            spread = extra["spread"].get(str(size))
            rows.append([
                str(size), f"{ns / 1e6:.3f}", f"{size * 1e9 / ns:.1f}", f"{measured.errors[size - 1]:.1%}",
                "-" if spread is None else f"{spread:.1%}", str(extra["repeats"][str(size)]),
                *(f"{times[size - 1] / 1e6:.3f}" for times in together.values()),
            ])  # fmt: skip
        lines = [f"{measured.model} on {measured.device}, {measured.threads} thread(s) per worker", *aligned(rows)]
        lines += _curves({f"stage {number}": stage.batch_ns for number, stage in enumerate(measured.stages)})
        lines += _curves({f"length {length}": times for length, times in measured.by_length})
        if extra["lengths"]:
            lines.append(f"lengths    {', '.join(f'{axis} {length}' for axis, length in extra['lengths'].items())}")
        lines += [
            f"fit        {line['alpha_ms']:.3f} + {line['beta_ms']:.4f} b ms, residual {line['residual']:.1%}",
            f"best       {measured.peak:.1f} rows/s at {measured.best} rows",
        ]
        if measured.handover_ns is not None:
            lines.append(f"hand-over  {measured.handover_ns / 1e6:.3f} ms a batch beside its time")
        if measured.power is not None:
            lines.append(f"power      {measured.power.idle:.1f} W idle, {measured.power.busy:.1f} W busy")
        if "suggested" in extra:
            lines += _suggestion(extra, on_cpu=not measured.device.startswith("cuda"))
        if self.kept is not None:
            lines.append(f"kept       {self.kept}")
        print("\n".join(lines))


def _curves(curves: Mapping[str, Sequence[int]]) -> list[str]:
    """A table of batch times of a few sizes, a column for each stage or length; nothing without curves."""
    from app.engine.profiling.sampler import size_sets
    from app.sim.report import aligned

    if not curves:
        return []
    sizes = size_sets(max(map(len, curves.values())))[-1]
    rows = [[str(size), *(f"{times[size - 1] / 1e6:.3f}" for times in curves.values())] for size in sizes]
    return ["", *aligned([["rows", *(f"ms, {name}" for name in curves)], *rows])]


def _suggestion(extra: Mapping[str, Any], *, on_cpu: bool) -> list[str]:
    lines = [
        f"compared   {one['threads']} thread(s) x {one['workers']} worker(s): {one['rows_per_s']:.1f} rows/s in "
        f"batches of {one['batch']}, one row alone {one['single_ms']:.3f} ms; {_means(one)}"
        for one in extra["candidates"]
    ]
    best = extra["suggested"]
    flags = output.serve_flags(best["threads"] if on_cpu else None, best["workers"], best["max_alive"])
    return [*lines, f"suggested  {flags}, or --workers auto"]


def _means(one: Mapping[str, Any]) -> str:
    """The mean latencies of a candidate, or why it has none. "-": it cannot serve that rate."""
    means = ", ".join("-" if mean is None else f"{mean:.3f}" for mean in one["mean_ms"])
    return f"mean latency {means} ms" if means else str(one["why_not"])
