"""`starling models` and `starling check`: what a repository holds, and whether it would be served."""

from __future__ import annotations

import sys
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from planner.commands.options import ExtraOption, served

if TYPE_CHECKING:  # torch takes seconds to load: only when a command runs
    from app.models.repository import Repository
    from planner.commands.checked_models import Checked

# a path may hold `:100:`, a line cut for a terminal is no use in a pipe, and rich takes minutes to colour a long word
out = Console(emoji=False, soft_wrap=True, highlight=False)

PlaceArgument = Annotated[
    str | None,
    typer.Argument(
        envvar="STARLING_MODELS",
        help="A repository, a model's folder or file, or demo, bench: as serve takes. \\[demo; none with --model]",
        show_default=False,
    ),
]


def models(context: typer.Context, models: PlaceArgument = None, extra: ExtraOption = None) -> None:
    """List what a repository holds, from its model.toml files; nothing that has one is loaded."""
    from planner.commands.checked_models import describe

    found = describe(_served(context, models, extra))
    for one in found:
        _print(one, one.origin, "")
    if any(one.error for one in found):
        sys.exit(1)


def check(
    context: typer.Context,
    place: PlaceArgument = None,
    extra: ExtraOption = None,
    row_check: Annotated[
        Literal["refuse", "warn", "off"] | None,
        typer.Option(help="Models whose rows depend on their batch. [as model.toml says: refuse]"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit status 1 for a warning as well.")] = False,
) -> None:
    """Load each model, try batches of several sizes, and compare each row alone and in company.

    Prints what each declares. Exit status 1 if one would not be served, or can take no row.
    """
    from planner.commands.checked_models import check as check_models

    results = check_models(_served(context, place, extra), row_check)
    for result in results:
        _print(result, f"{result.parameters:,} parameters", "[green]✓[/green] ")
    if any(result.error or (strict and result.warnings) for result in results):
        sys.exit(1)


def _served(context: typer.Context, place: str | None, extra: list[str] | None) -> Repository:
    """What `starling serve` would serve from there, until the command ends. Raises ConfigError."""
    return served(context, "demo" if place is None and not extra else place, extra or []).repository


def _print(result: Checked, about: str, mark: str) -> None:
    """A version with what it declares, or with its error. `about`: what else there is to say of it, after `mark`."""
    title = f"{result.source.name} version {result.source.version}"
    if result.error:
        out.print(f"[red]✗[/red] {title}: {escape(result.error)}")
    elif result.info is not None:
        out.print(f"{mark}{title}: {escape(about)}")
        for warning in result.warnings:
            out.print(f"    [yellow]warning[/yellow]  {escape(warning)}")
        batching = result.info.batching
        out.print(f"    inputs   {_tensors(result.info.client_inputs)}")
        if made := [spec for spec in result.info.inputs if spec.made]:
            out.print(f"    made     {_tensors(made)}")
        out.print(f"    outputs  {_tensors(result.info.outputs)}")
        out.print(f"    batching {batching.policy}, up to {batching.max_batch} rows, {batching.max_queue} may wait")
    if result.trace:
        out.print(escape(indent(result.trace, "    ")), end="")


def _tensors(specs: Any) -> str:
    return escape(", ".join(f"{spec.name} {spec.datatype} [{', '.join(spec.axes_shown())}]" for spec in specs))
