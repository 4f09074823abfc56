"""Model folders for tests, written to a temporary place."""

from __future__ import annotations

from pathlib import Path

from app.contract import Model, ModelSource
from app.models.checks.trial import call_directly, try_model

TOML = """
source = "model.py:build"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [3]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [3]
"""

CODE = """
from torch import nn
def build():
    return nn.Identity()
"""


def write_model(folder: Path, toml: str = TOML, code: str | None = CODE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.toml").write_text(toml)
    if code is not None:
        (folder / "model.py").write_text(code)
    return folder


def source_of(folder: Path, name: str = "m", version: int = 1) -> ModelSource:
    return ModelSource(name, version, folder)


def try_out(model: Model) -> list[str]:
    """As `starling check` does: warnings, or what it raises."""
    return try_model(model, call_directly(model))
