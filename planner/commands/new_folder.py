"""`starling new`: makes the folder of a model, with its file, a model.toml and a request."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.contract import SampleRow, TensorSpec
from app.errors import ConfigError
from app.models.description.config import FILE_NAME, INSTEAD
from app.models.model_files import file_at
from app.models.repository import NAME
from app.models.sources.onnx_model import external_files
from app.models.sources.opening import MODEL_FILES
from app.values.tensors import v2_request
from planner.commands.checked_models import Checked, check
from planner.commands.scaffold.draft import source_in, write_likeliest
from planner.commands.scaffold.guess import InputTables, request_row, specs_of
from planner.commands.scaffold.new_task import HUB, is_same, names_task, write_task

_GIVEN = re.compile(r"(\S.*?):([A-Z]+\d*)\[([^\]]*)\]")
_MOST_VALUES = 4096  # of a request in JSON: a larger one is a .npy file
_CODE = """from torch import nn


def build():
    return nn.Softmax(dim=1)
"""


def parse_input(text: str) -> dict[str, Any]:
    """`ids:INT64[tokens]` as a table of model.toml. Raises ConfigError."""
    found = _GIVEN.fullmatch(text)
    if found is None:
        raise ConfigError(f'input: expected NAME:DATATYPE[SHAPE] like "x:FP32[3]" or "ids:INT64[tokens]", got {text!r}')
    name, datatype, axes = found.groups()
    parts = [part.strip() for part in axes.split(",") if part.strip()]
    return {
        "name": name,
        "datatype": datatype,
        "shape": [int(part) if re.fullmatch(r"-?\d+", part) else part for part in parts],
    }


@dataclass(frozen=True, slots=True)
class Made:
    """A new folder, `files` relative to it. `checked`: the result of `starling check`; after an error the folder is
    removed again. `toml`: the content of model.toml. `curl`: a command that sends the request.
    """

    folder: Path
    files: tuple[str, ...]
    checked: Checked
    toml: str
    curl: str


def make(
    target: Path,
    origin: str,
    inputs: InputTables,
    weights: Path | None = None,
    task: str = "",
) -> Made:
    """Make the folder `target`, whose name is the model's.

    `origin`: `package.module:CALLABLE` and the like, a file, a folder with one, or "" for a model to begin with.
    `inputs`: tables of model.toml, if they cannot be guessed. `weights`: a file of weights, which is copied. `task`: of
    a model that transformers saved, if its config.json does not tell. Raises ConfigError. Nothing is left then, nor if
    the model is refused.
    """
    name = Path(os.path.abspath(target)).name
    if not NAME.fullmatch(name):
        raise ConfigError(f"name: expected letters, digits, '_', '.' and '-', got {name!r}")
    if target.exists():
        raise ConfigError(f"{target}: is there already")
    found = _place(origin)
    if weights is not None and not weights.is_file():
        raise ConfigError(f"weights: expected a file, got {str(weights)!r}")
    specs_of(inputs)
    fresh = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True)
    made = None
    try:
        if task or names_task(found, MODEL_FILES):
            if inputs or weights is not None:
                raise ConfigError("task: expected no --input or --weights beside it: its own files say it all")
            write_task(target, found, task)
            checked = None
        else:
            checked = _fill(target, found, inputs, weights)
        made = _made(target, name, checked or check(target)[0])
        return made
    finally:
        if made is None or made.checked.error:
            shutil.rmtree(target)
            for folder in fresh[1:]:
                with suppress(OSError):  # another process has put a file there meanwhile
                    folder.rmdir()


def _fill(target: Path, origin: str | Path, inputs: InputTables, weights: Path | None) -> Checked | None:
    """Copy the model's files and write its model.toml, unless there is one. Returns the result of a check, if any."""
    source = _copied(origin, target)
    if weights is not None:
        shutil.copy(weights, target / weights.name)
    if origin == "":
        inputs = inputs or [{"name": "x", "datatype": "FP32", "shape": [3]}]
    if not (target / FILE_NAME).is_file():
        return write_likeliest(target, source, inputs, "" if weights is None else weights.name)
    if inputs or weights is not None:
        raise ConfigError(f"{origin}: has a {FILE_NAME}, which says what goes in, and the weights: edit it instead")
    return None


def _made(target: Path, name: str, checked: Checked) -> Made:
    """The result, with a request of one row if the model may be served."""
    curl = ""
    if checked.info is not None and not checked.error:
        specs = checked.info.client_inputs
        curl = _request(target, name, specs, checked.example or request_row(specs))
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    return Made(target, tuple(files), checked, (target / FILE_NAME).read_text(encoding="utf-8"), curl)


# files


def _place(origin: str) -> str | Path:
    """A file or folder as a path, also of hf:FOLDER; any other source unchanged. Raises ConfigError."""
    if origin.startswith(HUB) and Path(origin.removeprefix(HUB)).is_dir():
        origin = origin.removeprefix(HUB)
    if not origin or (":" in origin and not Path(origin).exists()):
        file, _, name = origin.rpartition(":")
        is_here = file.endswith(".py") and Path(file).is_file()  # relative to where the command runs
        return f"{Path(file).absolute().as_posix()}:{name}" if is_here else origin
    path = Path(origin)
    if not path.exists():
        raise ConfigError(f"from: expected package.module:Class, a model's file or a folder; {origin!r} is not there")
    return path


def _copied(origin: str | Path, target: Path) -> str:
    """Copy the model's files into the folder. Returns the `source` of model.toml; "" if there is a model.toml."""
    if origin == "":
        (target / "model.py").write_text(_CODE)
        return "model.py:build"
    if isinstance(origin, str):
        return origin
    if origin.is_dir():
        if any(is_same(above, origin) for above in target.absolute().parents):
            raise ConfigError(f"{target}: expected a folder outside of {origin}, which is copied into it")
        skipped = shutil.ignore_patterns(".*", "__pycache__")
        source = "" if (origin / FILE_NAME).is_file() else source_in(origin)
        try:
            shutil.copytree(origin, target, dirs_exist_ok=True, ignore=skipped)
        except shutil.Error as error:  # of one file or several
            raise ConfigError(f"{origin}: cannot be copied: {error.args[0][0][-1]}") from None
        return source
    if origin.suffix not in MODEL_FILES:
        wanted = f"expected a model's file, one of *{', *'.join(MODEL_FILES)}, or its folder"
        raise ConfigError(f"{origin}: {INSTEAD.get(origin.suffix, wanted)}")
    beside = external_files(origin) if origin.suffix == ".onnx" else []
    for name in (origin.name, *beside):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file_at(origin.parent / name), target / name)
    return origin.name


def _request(target: Path, name: str, specs: Sequence[TensorSpec], row: SampleRow) -> str:
    """Write a request of one row. Returns the command that sends it."""
    place = shlex.quote(target.as_posix())
    if len(specs) == 1 and row.arrays[0].size > _MOST_VALUES:
        np.save(target / "request.npy", row.arrays[0])
        kind = "-H 'Content-Type: application/x-npy'"
        return f"curl localhost:8000/predict/{name} {kind} --data-binary @{place}/request.npy"
    body = v2_request(specs, row)
    if isinstance(body["inputs"][0]["data"][0], dict):  # bytes that are no text: an image
        (target / "request.png").write_bytes(row.arrays[0].item())
        return f"curl localhost:8000/predict/{name} -H 'Content-Type: image/png' --data-binary @{place}/request.png"
    (target / "request.json").write_text(json.dumps(body) + "\n")
    return f"curl localhost:8000/v2/models/{name}/infer -d @{place}/request.json"
