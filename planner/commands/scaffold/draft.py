"""Drafts of model.toml for a model's file or class, the likeliest first. Each is tried until one works."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.errors import ConfigError
from app.models.base import one_line
from app.models.description.config import FILE_NAME, ModelTable
from app.models.recurrent.rnn_graph import holds_layer
from app.models.sources.imports import source_hint
from app.models.sources.onnx_model import graph_tables
from app.models.sources.opening import MODEL_FILES, open_source
from app.models.sources.torch_files import exported_module, free_graphs, load_exported
from planner.commands.checked_models import Checked, check
from planner.commands.scaffold.guess import (
    ASK,
    InputTables,
    exported_inputs,
    found_outputs,
    guesses,
)


@dataclass(slots=True)
class Draft:
    """The content of a model.toml. `call`: the opened source, if it has been opened."""

    source: str
    inputs: InputTables = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    recurrent: bool = False
    weights: str = ""
    call: Any = None

    def toml(self) -> str:
        keys = ("source", "weights", "recurrent")
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key in keys if (value := getattr(self, key))]
        for key, tables in (("inputs", self.inputs), ("outputs", self.outputs)):
            for table in tables:
                pairs = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in table.items())
                lines += ["", f"[[{key}]]", *pairs]
        return "\n".join(lines) + "\n"


def write_likeliest(target: Path, source: str, inputs: InputTables, weights: str = "") -> Checked | None:
    """Write model.toml for the first draft that `starling check` passes, and return the result of that.

    If none passes, the last draft is written unchecked; returns None. Raises ConfigError.
    """
    try:
        source.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"source: expected UTF-8, as model.toml is, got {source!r}") from None
    drafts = _runnable(target, source, inputs)
    draft = next(drafts)
    while True:
        draft.weights = weights
        (target / FILE_NAME).write_text(draft.toml(), encoding="utf-8")
        following = next(drafts, None)
        if following is None:
            return None
        checked = check(target)[0]
        if not (checked.error or checked.untried):
            return checked
        draft = following


def _runnable(target: Path, source: str, inputs: InputTables) -> Iterator[Draft]:
    """The drafts with whose inputs the model runs, completed with its outputs. Raises ConfigError if there is none."""
    reason, none = "", True
    for draft in _drafts(target, source, inputs):
        try:
            if not draft.outputs:
                call = _opened(draft, target) if draft.call is None else draft.call
                draft.outputs = found_outputs(call, draft.inputs)
        except (Exception, SystemExit) as error:  # the model's own code
            reason = reason or (str(error) if isinstance(error, ConfigError) else one_line(error))
            continue
        none = False
        yield draft
    if none:
        raise ConfigError(f"{source}: cannot be run on made-up rows: {reason}; {ASK}")


def _drafts(target: Path, source: str, inputs: InputTables) -> Iterator[Draft]:
    """All drafts, the likeliest first. Raises ConfigError if nothing can be guessed."""
    path = target / source
    if source.endswith(".onnx"):
        yield Draft(source, *graph_tables(path, inputs))
        return
    if source.endswith(".pt2"):
        program = _opened_or_named(source, partial(load_exported, path))
        found = exported_inputs(program)
        yield Draft(source, inputs or found, call=exported_module(program))
        return
    call = _opened(Draft(source), target)
    choices: Iterable[InputTables] = [inputs]
    if not inputs:
        if not isinstance(call, torch.nn.Module):
            raise ConfigError(f"{source}: a {type(call).__name__} does not say what it takes: {ASK}")
        choices = guesses(call)
    for tables in choices:
        if holds_layer(call):
            yield Draft(source, tables, recurrent=True, call=call)
        yield Draft(source, tables, call=call)


def _opened(draft: Draft, target: Path) -> Any:
    """Open the source. Only the names of inputs and outputs matter for that."""
    some = [{"name": "x", "datatype": "FP32", "shape": []}]
    config = {"source": draft.source, "inputs": draft.inputs or some, "outputs": draft.outputs or some}
    call = _opened_or_named(draft.source, partial(open_source, ModelTable.model_validate(config), target))
    return free_graphs(call).eval() if isinstance(call, torch.nn.Module) else call


def _opened_or_named(source: str, opens: Callable[[], Any]) -> Any:
    """Call `opens`. Errors of the model's own code become a ConfigError that names the source."""
    try:
        return opens()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{source}: {one_line(error)}{source_hint(error, source)}") from error


def source_in(folder: Path) -> str:
    """The source of the one model in a folder without a model.toml. Raises ConfigError for none and for several."""
    models = sorted(path.name for path in folder.iterdir() if path.suffix in MODEL_FILES)
    if not models and (folder / "model.py").is_file():
        return "model.py:build"
    if len(models) != 1:
        wanted = f"{FILE_NAME}, model.py with a callable build, or one of *{', *'.join(MODEL_FILES)}"
        raise ConfigError(f"{folder}: expected {wanted}, found {', '.join(models) or 'none'}")
    return models[0]
