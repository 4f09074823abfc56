"""`starling new`: the folder of a model, from a class, a file, or nothing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[Path, typer.Argument(help="The folder to make; its name is the model's.", metavar="NAME")],
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SOURCE",
            show_default=False,
            help="package.module:Class, torchvision:NAME, timm:NAME; a file model.pt2, .pt or .onnx, or a "
            "folder with one, or with model.py, model.toml or transformers' config.json. \\[a model to begin with]",
        ),
    ] = "",
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME:TYPE[SHAPE]", help="An input, if it cannot be guessed; can be repeated."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A state dict, or safetensors; copied.", show_default=False)
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            metavar="TASK",
            help="What a transformers model is for, if its config.json does not say it, or it is hf:NAME.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Make the folder of a model: model.toml and a request for curl. What it takes and gives is tried.

    Exit status 1 if `starling check` refuses it: the model.toml that was tried is printed. Nothing is left then.
    """
    from app.models.repository import SETS
    from planner.commands.new_folder import make, parse_input

    made = make(name, origin, [parse_input(text) for text in inputs or []], weights, task)
    if made.checked.error:
        print(f"starling: {made.checked.error}", file=sys.stderr)
        print(f"starling: nothing was written; this model.toml was tried:\n\n{made.toml}", end="", file=sys.stderr)
        sys.exit(1)
    print("\n".join(f"{made.folder}/{file}" for file in made.files))
    for warning in made.checked.warnings:
        print(f"starling: warning: {warning}", file=sys.stderr)
    place = f"./{made.folder}" if str(made.folder) in SETS else str(made.folder)
    print(f"\nstarling serve {shlex.quote(place)}\n{made.curl}")
