"""`starling profile`: measures the batch times of a model on this machine, as the server's workers run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import ConfigError, as_config_error
from app.machine import cpu_cores
from planner.commands.filled import filled
from planner.commands.options import (
    DeviceOption,
    ExtraOption,
    JsonOption,
    Models,
    ModelsOption,
    PrecisionOption,
    ProfileDirOption,
    find_model,
    load_model,
    refuse,
    served,
    typed,
)
from planner.commands.output import aligned
from planner.commands.profile_beside import ALL, Pairs, check_room, measure_pairs
from planner.commands.profile_measure import measure, settings_of
from planner.commands.profile_stages import Slices, measure_stages, parse_stages

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model
    from app.scheduler.estimates.profile import Profile
    from app.settings import Settings

#: Options without a meaning for stages, which are timed one after the other on the CPU.
_NOT_OF_STAGES = ("device", "precision", "compile", "workers", "beside", "profile_dir")


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """The options of `starling profile`."""

    model: Annotated[str, typer.Argument(help="The model's name, its folder or file; its highest version is measured.")]
    models: ModelsOption = "demo"
    extra: ExtraOption = None
    max_batch: Annotated[
        int,
        typer.Option(
            envvar="STARLING_MAX_BATCH",
            min=0,
            max=4096,
            help="Largest batch, rows. \\[the model's]",
            show_default=False,
        ),
    ] = 0
    device: DeviceOption = "auto"
    threads: Annotated[
        int,
        typer.Option(
            envvar="STARLING_THREADS",
            min=0,
            help="Compute threads per worker. \\[cores - 1, at least 1]",
            show_default=False,
        ),
    ] = 0
    precision: PrecisionOption = "fp32"
    compile: Annotated[bool, typer.Option(envvar="STARLING_COMPILE", help="Compile it with torch.compile.")] = False
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Measure up to so many batches at once. \\[as many as threads x workers fit; 4 on a GPU]",
            show_default=False,
        ),
    ] = 0
    length: Annotated[
        int,
        typer.Option(
            min=0,
            help="Length of variable axes in the main table. \\[16, or that of the model's own samples]",
            show_default=False,
        ),
    ] = 0
    budget_s: Annotated[float, typer.Option(help="Seconds of batches to measure, at most.")] = 60
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Measure only what it is slowed by beside this one; can be repeated; all: beside each.",
        ),
    ] = None
    stages: Annotated[
        str,
        typer.Option(
            metavar="INT|auto",
            help="Measure only what cutting it into stages of equal time gives; auto: its own, or several numbers.",
            show_default=False,
        ),
    ] = ""
    cuts: Annotated[
        list[str] | None,
        typer.Option(help="As --stages, cut after this submodule, a name of named_modules; can be repeated."),
    ] = None
    profile_dir: ProfileDirOption = None
    out: Annotated[Path | None, typer.Option(help="Write the profile here, too.")] = None
    as_json: JsonOption = False

    @property
    def in_stages(self) -> bool:
        return bool(self.stages or self.cuts)

    def settings(self, workers: int) -> Settings:
        """Those of a server that measures `workers` batches at once; 0: as many as fit."""
        device = "cpu" if self.in_stages else self.device
        given = {"device": device, "threads": self.threads, "precision": self.precision, "compile": self.compile}
        return settings_of(workers, self.budget_s, self.profile_dir, **given)


@filled
def profile(context: typer.Context, given: MeasureOptions) -> None:
    """Measure the batch times of a model: each size alone, and several batches at once; by length where that varies.

    The engine of `starling serve` measures it, as it would while idle: pass by pass over all sizes, until each is known
    to 2 %; also each stage of a model in stages. The result is kept where `starling serve` looks for it, and is what
    `starling simulate --profile` takes.

    With --beside instead: what a batch of it is slowed by while another model runs on another worker, and what that one
    keeps of its speed. Kept with the profiles.

    With --stages or --cuts instead: the times of its stages on the CPU by batch size, and what the cuts cost.
    """
    if given.in_stages:
        refuse(typed(context), _NOT_OF_STAGES, "has no meaning with --stages or --cuts")
    out = given.out
    if out is not None and not out.absolute().parent.is_dir():  # say so before minutes of measuring
        raise ConfigError(f"{out}: no such folder")
    found = _measured(given, context)
    text = json.dumps(found.as_dict(), indent=1)
    if out is not None:
        with as_config_error("out"):
            out.write_text(text + "\n", encoding="utf-8")
    if given.as_json:
        print(text)
    else:
        found.show()


def _measured(given: MeasureOptions, context: typer.Context) -> Slices | Pairs | MeasuredProfile:
    """Raises ConfigError for a wrong option, before it measures."""
    number = parse_stages(given.stages, given.cuts or [])
    known = served(context, given.models, given.extra or [])

    def load(name: str) -> Model:
        return load_model(find_model(context, name, known)[0], given.max_batch)

    if given.in_stages:
        return measure_stages(load(given.model), number, given.cuts or [], given.settings(1), given.length)
    if given.beside:
        return _measured_beside(given, given.beside, known, load)
    loaded = load(given.model)
    return MeasuredProfile(*measure(loaded, given.settings(given.workers), given.length), given.precision)


def _measured_beside(
    given: MeasureOptions, beside: Sequence[str], known: Models, load: Callable[[str], Model]
) -> Pairs:
    from app.engine.streams.cuda import device_index

    loaded = load(given.model)
    if device_index(given.device) is None:
        check_room(cpu_cores(), given.threads or max(1, cpu_cores() - 1), given.workers)
    names = known.repository.scan() if ALL in beside else dict.fromkeys(beside)
    others = [loaded if name == loaded.info.name else load(name) for name in names]
    return measure_pairs(loaded, others, given.settings(2), given.length)


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile, and the file that stores it."""

    profile: Profile
    kept: Path | None
    precision: str

    def as_dict(self) -> dict[str, Any]:
        import torch

        from app.scheduler.estimates.profile_format import to_dict

        profile = self.profile
        best = {"batch": profile.best, "rows_per_s": profile.peak}
        made_with = {"torch": torch.__version__, "precision": self.precision}
        return {**made_with, **to_dict(profile), "fit": profile.fit, "best": best}

    def show(self) -> None:
        """Print the table and the fitted line."""
        measured = self.profile
        extra, together, line = measured.extra, measured.concurrency_ns, measured.fit
        rows = [["rows", "ms", "rows/s", "error", "runs", *(f"ms, {count} at once" for count in together)]]
        for size, ns in enumerate(measured.batch_ns, 1):
            rows.append([
                str(size), f"{ns / 1e6:.3f}", f"{size * 1e9 / ns:.1f}", f"{measured.errors[size - 1]:.1%}",
                str(extra["repeats"].get(str(size), "-")),
                *(f"{times[size - 1] / 1e6:.3f}" for times in together.values()),
            ])  # fmt: skip
        lines = [f"{measured.model} on {measured.device}, {measured.threads} thread(s) per worker", *aligned(rows)]
        lines += _curves({f"stage {number}": stage.batch_ns for number, stage in enumerate(measured.stages)})
        lines += _curves({f"length {length}": times for length, times in measured.by_length})
        if extra["lengths"]:
            lines.append(f"lengths    {', '.join(f'{axis} {length}' for axis, length in extra['lengths'].items())}")
        lines.append(f"noise      {extra['noise']:.1%} of a batch's time")
        lines += [
            f"fit        {line['alpha_ms']:.3f} + {line['beta_ms']:.4f} b ms, residual {line['residual']:.1%}",
            f"best       {measured.peak:.1f} rows/s at {measured.best} rows",
        ]
        if measured.handover_ns is not None:
            lines.append(f"hand-over  {measured.handover_ns / 1e6:.3f} ms a batch beside its time")
        if self.kept is not None:
            lines.append(f"kept       {self.kept}")
        print("\n".join(lines))


def _curves(curves: Mapping[str, Sequence[int]]) -> list[str]:
    """A table of batch times of a few sizes, a column for each stage or length; nothing without curves."""
    from app.engine.profiling.idle import size_sets

    if not curves:
        return []
    sizes = size_sets(max(map(len, curves.values())))[-1]
    rows = [[str(size), *(f"{times[size - 1] / 1e6:.3f}" for times in curves.values())] for size in sizes]
    return ["", *aligned([["rows", *(f"ms, {name}" for name in curves)], *rows])]
