"""`starling models` and `starling check`: what a repository holds, and whether it would be served."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

out = Console()


def models(
    models: Annotated[str, typer.Argument(help="A model repository folder, or demo, bench.")] = "demo",
) -> None:
    """List what a repository holds, from its model.toml files; nothing is loaded."""
    from app.models.repository import Repository
    from planner.commands.checked_models import describe

    table = Table("model", "version", "inputs", "outputs", "max batch", "source")
    broken = False
    for row in describe(Repository(models)):
        name, version = row.source.name, str(row.source.version)
        if row.info is None:
            broken = True
            table.add_row(name, version, f"[red]{_escape(row.error)}[/red]")
            continue
        table.add_row(
            name, version, _tensors(row.info.client_inputs), _tensors(row.info.outputs),
            str(row.info.batching.max_batch), _escape(row.origin),
        )  # fmt: skip
    out.print(table)
    if broken:
        sys.exit(1)


def check(
    place: Annotated[Path, typer.Argument(help="A model repository, or a model's folder or file, as serve takes.")],
    row_check: Annotated[
        Literal["refuse", "warn", "off"] | None,
        typer.Option(help="Models whose rows depend on their batch. [as model.toml says: refuse]"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit status 1 for a warning as well.")] = False,
) -> None:
    """Load each model, try batches of several sizes, and compare each row alone and in company.

    Prints what each declares. Exit status 1 if one would not be served.
    """
    from planner.commands.checked_models import check as check_models
    from planner.commands.scaffold.bare import with_model_toml

    with with_model_toml(str(place), ()) as changed:
        found = str(changed["models"]) if changed else place if place.exists() else str(place)
        results = check_models(found, row_check)
    for result in results:
        title = f"{result.source.name} version {result.source.version}"
        if result.error:
            out.print(f"[red]✗[/red] {title}: {_escape(result.error)}", soft_wrap=True)
        elif result.info is not None:
            out.print(f"[green]✓[/green] {title}: {result.parameters:,} parameters")
            for warning in result.warnings:
                out.print(f"    [yellow]warning[/yellow]  {_escape(warning)}", soft_wrap=True)
            batching = result.info.batching
            out.print(f"    inputs   {_tensors(result.info.client_inputs)}", soft_wrap=True)
            if made := [spec for spec in result.info.inputs if spec.made]:
                out.print(f"    made     {_tensors(made)}", soft_wrap=True)
            out.print(f"    outputs  {_tensors(result.info.outputs)}", soft_wrap=True)
            out.print(f"    batching {batching.policy}, up to {batching.max_batch} rows, {batching.max_queue} may wait")
        if result.trace:
            out.print(_escape(indent(result.trace, "    ")), soft_wrap=True, end="")
    if any(result.error or (strict and result.warnings) for result in results):
        sys.exit(1)


def _tensors(specs: Any) -> str:
    return _escape(", ".join(f"{spec.name} {spec.datatype} [{', '.join(spec.axes_shown())}]" for spec in specs))


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
