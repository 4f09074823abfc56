"""Options of a command as the fields of a frozen dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def _option(name: str, annotation: object, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter as typer reads it. `annotation`: Annotated with typer's Option or Argument."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def filled(command: Callable[..., None]) -> Callable[..., None]:
    """Let typer fill the frozen dataclass that a command takes: an option for each field, in the order of the fields.

    A field is annotated as a parameter of typer would be. The command's other parameters stay as they are.
    """
    hints = get_type_hints(command)
    kind: Any
    name, kind = next((name, kind) for name, kind in hints.items() if is_dataclass(kind))
    kinds = get_type_hints(kind, include_extras=True)

    @wraps(command)
    def call(**given: object) -> None:
        filled_in = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given, **{name: filled_in})

    options = [_option(other, hints[other]) for other in inspect.signature(command).parameters if other != name]
    for field in fields(kind):
        default = () if field.default is MISSING else (field.default,)
        options.append(_option(field.name, kinds[field.name], *default))
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call
