"""What `starling profile` prints: the table, the line through it, what follows; a bar while it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from app.engine.profiling.sampler import coarser
from app.scheduler.estimates.profile import ModelProfile


def show(measured: ModelProfile, kept: Path | None) -> None:
    """The table, the line through it, and what to do with it."""
    out = Console()
    spread, runs, errors = measured.extra["spread"], measured.extra["repeats"], measured.errors
    together = measured.concurrency_ns
    out.print(
        f"{measured.model} on {measured.device}, {measured.threads} thread(s) per worker",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("rows", "ms", "rows/s", "error", "spread", "runs", *(f"ms, {units} at once" for units in together))
    for column in table.columns:
        column.justify = "right"
    for size, ns in enumerate(measured.batch_ns, 1):
        part = spread.get(str(size))
        table.add_row(
            str(size), f"{ns / 1e6:.3f}", f"{size * 1e9 / ns:.1f}", f"{errors[size - 1]:.1%}",
            "-" if part is None else f"{part:.1%}", str(runs[str(size)]),
            *(f"{times[size - 1] / 1e6:.3f}" for times in together.values()),
        )  # fmt: skip
    out.print(table)
    _show_curves(out, {f"stage {number}": stage.batch_ns for number, stage in enumerate(measured.stages)})
    _show_curves(out, {f"length {length}": times for length, times in measured.by_length})
    line = measured.fit()
    if measured.extra["lengths"]:
        lengths = ", ".join(f"{axis} {length}" for axis, length in measured.extra["lengths"].items())
        out.print(f"lengths    {lengths}", highlight=False, soft_wrap=True)
    out.print(
        f"fit        {line.alpha_ns / 1e6:.3f} + {line.beta_ns / 1e6:.4f} b ms, residual {line.residual:.1%}\n"
        f"best       {measured.peak:.1f} rows/s at {measured.best} rows",
        highlight=False,
        soft_wrap=True,
    )
    if measured.handover_ns is not None:
        out.print(f"hand-over  {measured.handover_ns / 1e6:.3f} ms a batch beside its time", highlight=False)
    if measured.transfer_ns:
        last = measured.max_batch
        parts = measured.extra["transfer_parts_ms"]
        told = (f"{size} row{'s' * (size > 1)} {parts['in'][str(size)]:.4f} ms in, {parts['out'][str(size)]:.4f} out"
                for size in sorted({1, last}))  # fmt: skip
        out.print(f"copies     {'; '.join(told)}", highlight=False, soft_wrap=True)
    if measured.power is not None:
        out.print(
            f"power      {measured.power.idle:.1f} W idle, {measured.power.busy:.1f} W busy",
            highlight=False,
            soft_wrap=True,
        )
    if "suggested" in measured.extra:
        _show_suggestion(out, measured.extra)
    if kept is not None:
        out.print(f"kept       {kept}", highlight=False, soft_wrap=True)


def _show_curves(out: Console, curves: Mapping[str, Sequence[int]]) -> None:
    """Batch times by what they are of, of a few sizes; nothing for none."""
    if not curves:
        return
    table = Table("rows", *(f"ms, {name}" for name in curves))
    for column in table.columns:
        column.justify = "right"
    for size in coarser(max(map(len, curves.values())))[-1]:
        table.add_row(str(size), *(f"{times[size - 1] / 1e6:.3f}" for times in curves.values()))
    out.print(table)


def _show_suggestion(out: Console, extra: Mapping[str, Any]) -> None:
    for one in extra["candidates"]:
        out.print(
            f"compared   {one['threads']} thread(s) x {one['workers']} worker(s): {one['rows_per_s']:.1f} rows/s in "
            f"batches of {one['batch']}, one row alone {one['single_ms']:.3f} ms",
            highlight=False,
            soft_wrap=True,
        )
    best = extra["suggested"]
    workers = ",".join(map(str, best["workers"]))
    out.print(
        f"suggested  --threads {best['threads']} --workers {workers} --max-alive {best['max_alive']}\n"
        f"           ({best['rule']})\n"
        "           `starling serve` takes it with --auto-size, else nothing changes",
        highlight=False,
        soft_wrap=True,
    )


class TimeBar(Progress):
    """Its bars advance by themselves: `total` is seconds, and what is completed is the time that has passed."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            if task.elapsed is not None and task.total is not None:
                task.completed = min(task.elapsed, task.total)
        return super().get_renderables()


@contextmanager
def progress(total_s: float, sizes: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's standard error, of the time that has passed; nothing elsewhere. Yields who hears progress.

    `total_s` is the most that it takes: it ends early when all `sizes` are known well enough, of which the bar tells.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = ("measuring", BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
               TextColumn("{task.fields[done]} of {task.fields[sizes]} sizes known"))  # fmt: skip
    with TimeBar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("profile", total=total_s, done=0, sizes=sizes)
        yield lambda done: bar.update(task, done=done)
