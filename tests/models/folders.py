"""Model folders for tests, written to a temporary place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.contract import Model, ModelSource
from app.errors import ConfigError
from app.models.loading import load
from planner.commands.checked_models import try_model


def table(kind: str, name: str, datatype: str, shape: str, *lines: str) -> str:
    """A tensor of model.toml; `kind`: inputs or outputs. `lines`: its other keys."""
    return "\n".join([f"[[{kind}]]", f'name = "{name}"', f'datatype = "{datatype}"', f"shape = {shape}", *lines])


def toml_of(*tables: str, head: str = 'source = "model.py:build"') -> str:
    return "\n".join([head, *tables, ""])


TOML = toml_of(table("inputs", "x", "FP32", "[3]"), table("outputs", "y", "FP32", "[3]"))

CODE = """
from torch import nn
def build():
    return nn.Identity()
"""
LINEAR = """
from torch import nn
def build(bias=True):
    return nn.Linear(3, 3, bias=bias)
"""


class Bomb:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def write_model(folder: Path, toml: str = TOML, code: str | None = CODE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.toml").write_text(toml)
    if code is not None:
        (folder / "model.py").write_text(code)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a file, which is made if there is none."""
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | changes))


def source_of(folder: Path, name: str = "m", version: int = 1) -> ModelSource:
    return ModelSource(name, version, folder)


def loaded(folder: Path, **overrides: Any) -> Model:
    """The model in this folder. `overrides`: of its settings, as from the environment."""
    return load(source_of(folder), overrides)


def refused(folder: Path) -> str:
    """Why the model in this folder is not loaded: one line, for a terminal of any kind."""
    with pytest.raises(ConfigError) as caught:
        load(source_of(folder))
    text = str(caught.value)
    assert "\n" not in text
    assert "\x1b" not in text
    return text


def try_out(model: Model) -> list[str]:
    """As `starling check` does: warnings, or what it raises."""
    return try_model(model)
