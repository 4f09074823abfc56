"""`starling slice`: what cutting a model into stages gives: times by stage and size, and what the cuts cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from app.cli.named_model import load_model
from app.errors import ConfigError
from app.settings import cpu_cores

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model

_TRIED = (2, 3, 4, 6, 8)  # numbers of stages, where none is asked for
_DEAR = 0.05  # of one row's time: what the cuts may cost, for a number of stages to be suggested
_FILLED = 0.9  # of a stage's most rows per second: the least size that reaches it is preferred


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds by batch size: of the whole, and of each stage."""

    whole: dict[int, float]
    stages: list[dict[int, float]]

    def cost(self, size: int) -> float:
        """What the cuts cost a batch of this size, as a share of the whole's time."""
        return sum(stage[size] for stage in self.stages) / self.whole[size] - 1

    def preferred(self, stage: int) -> int:
        """The least size with nearly the stage's most rows per second."""
        rates = {size: size / time for size, time in self.stages[stage].items()}
        return next(size for size, rate in rates.items() if rate >= _FILLED * max(rates.values()))

    def told(self) -> dict[str, Any]:
        return {
            "whole_ms": {str(size): time for size, time in self.whole.items()},
            "cuts_cost": {str(size): self.cost(size) for size in self.whole},
            "stages": [
                {"batch_ms": {str(size): time for size, time in stage.items()}, "preferred": self.preferred(number)}
                for number, stage in enumerate(self.stages)
            ],
        }


def register(cli: typer.Typer) -> None:
    """Add the command to the command line."""
    cli.command("slice")(slice_model)


def slice_model(
    model: Annotated[str, typer.Argument(help="The model's name, or its folder; its highest version is cut.")],
    models: Annotated[
        str, typer.Option(envvar="STARLING_MODELS", help="A model repository folder, or a set that ships: demo, bench.")
    ] = "demo",
    extra: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME=SOURCE", help="One more model; SOURCE is a folder with model.toml."),
    ] = None,
    stages: Annotated[
        int, typer.Option(min=0, max=64, help="Stages of equal time. \\[as declared, or tried]", show_default=False)
    ] = 0,
    cuts: Annotated[
        list[str] | None, typer.Option(help="Cut after this submodule, a name of named_modules; can be repeated.")
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=0, max=4096, help="Largest batch, rows. \\[the model's]", show_default=False)
    ] = 0,
    length: Annotated[
        int, typer.Option(min=0, help="Length of variable axes. \\[that of its rows, at most 16]", show_default=False)
    ] = 0,
    threads: Annotated[
        int, typer.Option(min=0, help="Compute threads. \\[cores - 1, at least 1]", show_default=False)
    ] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Batches of each size.")] = 15,
    plot: Annotated[Path | None, typer.Option(help="Write a plot here (.png, .svg, .pdf).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Cut a model into stages on the CPU, and show what that gives.

    Without --stages and --cuts: the stages that the model has, or several numbers of them, of which one is suggested.
    """
    if stages and cuts:
        raise ConfigError(f"stages: expected either --stages or --cuts, got both: {stages} and {cuts}")
    if stages == 1:
        raise ConfigError("stages: expected at least 2, got 1")
    draw = _plotter() if plot is not None else None
    if plot is not None and not plot.resolve().parent.is_dir():
        raise ConfigError(f"{plot}: no such folder")
    import torch

    torch.set_num_threads(threads or max(1, cpu_cores() - 1))
    loaded = load_model(model, models, extra or [], max_batch)
    found = {
        len(one.stages): measure(one, length, repeats) for one in _sliced(loaded, stages, tuple(cuts or ()))
    }  # by number of stages
    chosen = _suggested(found)
    try:
        if plot is not None and draw is not None:
            draw(model, found[chosen], plot)
    except (OSError, ValueError) as exc:
        raise ConfigError(str(exc)) from exc
    if as_json:
        told = {"model": model, "suggested": chosen, "slices": {str(n): times.told() for n, times in found.items()}}
        print(json.dumps(told, indent=1))
    else:
        _show(model, found, chosen)


def _sliced(model: Model, stages: int, cuts: tuple[str, ...]) -> list[Model]:
    """The model cut as asked; as it is, where nothing is asked and it has stages; else into several numbers."""
    from app.models.recurrent.cells import CellModel
    from app.models.stages.slicing import Cuts, sliced
    from app.models.stages.staged import Staged

    asked = Cuts(cuts, stages)
    if isinstance(model.call, Staged) and (stages or cuts):
        raise ConfigError(f"model {model.info.name!r}: expected no --stages or --cuts, its source returns Staged")
    if isinstance(model.call, CellModel):
        raise ConfigError(f"model {model.info.name!r}: expected a model to cut, got a recurrent one, run by its cell")
    if model.stages and not (stages or cuts):
        return [model]
    key = f"model {model.info.name!r}: {'cuts' if cuts else 'stages'}"
    if stages or cuts:
        try:
            return [sliced(model, asked)]
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None
    found = []
    for number in _TRIED:
        try:
            found.append(sliced(model, Cuts(stages=number)))
        except ConfigError as error:
            if not found:
                raise ConfigError(f"{key}: {error}") from None
            break  # it cannot be cut in so many places
    return found


def measure(model: Model, length: int, repeats: int) -> Times:
    """Time the model whole and stage by stage, in turn, as a worker runs them. Raises ConfigError."""
    from dataclasses import replace
    from statistics import median

    import torch

    from app.engine.cpu.executor import CpuExecutor
    from app.engine.cpu.staged import StagedExecutor
    from app.engine.pool import Pool
    from app.engine.profiling.warmup import write_rows
    from app.models.checks.samples import short_lengths, stretched
    from app.models.checks.trial import GIVE_ROWS, Unfit, call_directly, fit_row

    inputs, most = model.info.client_inputs, model.info.batching.max_batch
    pool = Pool(inputs, most)
    whole = CpuExecutor(replace(model, stages=(), again=(), context=None), pool)
    staged = StagedExecutor(model, pool)
    try:
        row = fit_row(model, call_directly(model))
    except Unfit as exc:
        raise ConfigError(f"model {model.info.name!r}: it raises on made-up rows: {exc}; {GIVE_ROWS}") from None
    if length:
        row = stretched(inputs, row, short_lengths(inputs, length))
    sizes = [1 << power for power in range(most.bit_length())]
    times: dict[tuple[int, int], list[int]] = {}  # by stage, -1 for the whole, and size
    with torch.inference_mode():
        for size in [*sizes, *([most] if sizes[-1] != most else [])]:
            slots = range(size)
            write_rows(pool, slots, [row])
            staged.trial(slots, size)
            for _ in range(repeats):
                times.setdefault((-1, size), []).append(whole.run(slots, size).busy_ns)
                for stage in range(len(model.stages)):
                    times.setdefault((stage, size), []).append(staged.run(slots, size, stage).busy_ns)
    by_stage: dict[int, dict[int, float]] = {}
    for (stage, size), spent in times.items():
        by_stage.setdefault(stage, {})[size] = median(spent) / 1e6
    return Times(by_stage.pop(-1), list(by_stage.values()))


def _suggested(found: dict[int, Times]) -> int:
    """The most stages whose cuts cost one row little; the fewest where all cost more."""
    cheap = [number for number, times in found.items() if times.cost(1) <= _DEAR]
    return max(cheap, default=min(found))


def _show(name: str, found: dict[int, Times], chosen: int) -> None:
    out = Console()
    if len(found) > 1:
        table = Table("stages", "cuts cost 1 row", "cuts cost the largest", "longest stage, 1 row, ms")
        for number, times in found.items():
            longest = max(stage[1] for stage in times.stages)
            row = (f"{times.cost(1):+.1%}", f"{times.cost(max(times.whole)):+.1%}", f"{longest:.3f}")
            table.add_row(str(number), *row)
        out.print(table)
        out.print(
            f"{chosen} stages: the most whose cuts cost one row at most {_DEAR:.0%}"
            if found[chosen].cost(1) <= _DEAR
            else f"{chosen} stages: the fewest tried; the cuts of all cost one row more than {_DEAR:.0%}",
            highlight=False,
            soft_wrap=True,
        )
    times = found[chosen]
    table = Table(f"{name}, ms", "whole", *(f"stage {number}" for number in range(chosen)), "cuts cost")
    for column in table.columns:
        column.justify = "right"
    for size, whole in times.whole.items():
        parts = (f"{stage[size]:.3f}" for stage in times.stages)
        table.add_row(f"{size} row{'s' * (size > 1)}", f"{whole:.3f}", *parts, f"{times.cost(size):+.1%}")
    table.add_row("preferred", "", *(str(times.preferred(number)) for number in range(chosen)), "", style="bold")
    out.print(table)


def _plotter() -> Callable[[str, Times, Path], None]:
    try:
        from app.cli.slice_plot import stage_times
    except ModuleNotFoundError as exc:
        raise ConfigError(f"plot: {exc.name} is missing; install starling-serve[plot]") from None

    def draw(name: str, times: Times, path: Path) -> None:
        stage_times(name, times.whole, times.stages, path)

    return draw
