"""Writes the folder of a new model: model.toml, a request, a test; the model's file is copied into it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.contract import SampleRow, TensorSpec
from app.errors import ConfigError
from app.models.base import one_line
from app.models.checks.check import Checked, check
from app.models.description.config import FILE_NAME, ModelTable
from app.models.loading import read_declared
from app.models.repository import NAME
from app.models.scaffold.guess import (
    ASK,
    InputTables,
    estimator_inputs,
    exported_inputs,
    found_outputs,
    guesses,
    is_recurrent,
    request_row,
    specs_of,
)
from app.models.scaffold.new_task import names_task, task_request, write_task
from app.models.sources.estimator import Estimator, load_estimator
from app.models.sources.imports import not_imported
from app.models.sources.onnx_model import graph_tables
from app.models.sources.opening import MODEL_FILES, open_source
from app.models.sources.torch_files import check_archive

_MOST_VALUES = 4096  # of a request in JSON: a larger one is a .npy file
#: What `starling new` calls the output of an estimator's method.
_OUTPUTS = {"predict": "label", "predict_proba": "scores", "transform": "output"}
_CODE = """from torch import nn


def build():
    return nn.Softmax(dim=1)
"""
_TEST = '''"""Run with: python -m pytest {name}"""

from pathlib import Path

from app.models.checks.check import check


def test_{word}():
    """It loads, takes batches of several sizes, and answers each row from that row alone."""
    (result,) = check(Path(__file__).parent).results
    assert not result.error, result.error
    assert [spec.name for spec in result.info.outputs] == {outputs}
'''


@dataclass(frozen=True, slots=True)
class Made:
    """A new folder. `checked` is what `starling check` says of it, `curl` asks the server for one row."""

    folder: Path
    files: tuple[str, ...]
    checked: Checked
    curl: str


@dataclass(slots=True)
class _Draft:
    """What model.toml is to say."""

    source: str
    inputs: InputTables = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    trust: bool = False
    recurrent: bool = False
    weights: str = ""

    def toml(self) -> str:
        lines = [f"source = {_value(self.source)}"]
        lines += [f"kwargs = {_value(self.kwargs)}"] * bool(self.kwargs)
        lines += [f"weights = {_value(self.weights)}"] * bool(self.weights)
        lines += ["trust = true"] * self.trust + ["recurrent = true"] * self.recurrent
        for key, tables in (("inputs", self.inputs), ("outputs", self.outputs)):
            for table in tables:
                lines += ["", f"[[{key}]]", *(f"{name} = {_value(value)}" for name, value in table.items())]
        return "\n".join(lines) + "\n"


def make(
    target: Path,
    origin: str,
    inputs: InputTables,
    trust: bool = False,
    weights: Path | None = None,
    task: str = "",
) -> Made:
    """Make the folder `target`, whose name is the model's.

    `origin`: `package.module:CALLABLE` and the like, a file, a folder with one, or "" for a model to begin with.
    `inputs`: tables of model.toml, where they cannot be guessed. `weights`: a file of them, which is copied. `task`: of
    what transformers has saved, where its config.json does not say it. Raises ConfigError, and leaves no folder then.
    """
    name = target.resolve().name
    if not NAME.fullmatch(name):
        raise ConfigError(f"name: expected letters, digits, '_', '.' and '-', got {name!r}")
    if target.exists():
        raise ConfigError(f"{target}: is there already")
    found = _place(origin)
    if weights is not None and not weights.is_file():
        raise ConfigError(f"weights: expected a file, got {str(weights)!r}")
    specs_of(inputs)
    target.mkdir(parents=True)
    try:
        if task or names_task(found, MODEL_FILES):
            if inputs or trust or weights is not None:
                raise ConfigError("task: expected no --input, --trust or --weights beside it: its own files say it all")
            checked = write_task(target, found, task)
            info = checked.info
            outputs = [] if info is None else [spec.name for spec in info.outputs]
            return _made(target, name, checked, outputs, task_request(target, name, checked))
        return _filled(target, name, found, inputs, trust, weights)
    except BaseException:
        shutil.rmtree(target)
        raise


def _filled(
    target: Path, name: str, origin: str | Path, inputs: InputTables, trust: bool, weights: Path | None
) -> Made:
    source = _copied(origin, target)
    if weights is not None:
        shutil.copy(weights, target / weights.name)
    if origin == "":
        inputs = inputs or [{"name": "x", "datatype": "FP32", "shape": [3]}]
    if (target / FILE_NAME).is_file():
        if inputs or weights is not None:
            raise ConfigError(f"{origin}: has a {FILE_NAME}, which says what goes in, and the weights: edit it instead")
        config = read_declared(target)
        tables = [table.model_dump(exclude_unset=True) for table in config.inputs]
        outputs = [table.name for table in config.outputs]
        checked = check(target).results[0]
    else:
        draft, checked = _written(target, source, inputs, trust, weights.name if weights is not None else "")
        tables, outputs = draft.inputs, [table["name"] for table in draft.outputs]
    return _made(target, name, checked, outputs, _request(target, name, tables))


def _made(target: Path, name: str, checked: Checked, outputs: Sequence[str], curl: str) -> Made:
    """Write the test beside the rest."""
    word = re.sub(r"\W", "_", name)
    names = json.dumps(outputs)
    (target / f"test_{word}.py").write_text(_TEST.format(name=target.as_posix(), word=word, outputs=names))
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    return Made(target, tuple(files), checked, curl)


def _written(target: Path, source: str, inputs: InputTables, trust: bool, weights: str) -> tuple[_Draft, Checked]:
    """model.toml for the first draft that `starling check` passes, or else for the last; what that says of it."""
    reason = ""
    found: tuple[_Draft, Checked] | None = None
    for draft in _drafts(target, source, inputs, trust):
        try:
            draft.outputs = draft.outputs or _outputs(draft, target)
        except (Exception, SystemExit) as error:  # the model's own code
            reason = reason or (str(error) if isinstance(error, ConfigError) else one_line(error))
            continue
        draft.weights = weights
        (target / FILE_NAME).write_text(draft.toml(), encoding="utf-8")
        found = draft, check(target).results[0]
        if not (found[1].error or found[1].untried):
            break
    if found is None:
        raise ConfigError(f"{source}: cannot be run on made-up rows: {reason}; {ASK}")
    return found


def _drafts(target: Path, source: str, inputs: InputTables, trust: bool) -> Iterator[_Draft]:
    """What model.toml might say, the likeliest first. Raises ConfigError where nothing can be guessed."""
    path = target / source
    if source.endswith(".onnx"):
        yield _Draft(source, *graph_tables(path, inputs))
        return
    if source.endswith(".joblib"):
        if not trust:
            raise ConfigError(f"{source}: a pickle, which may run any code as it is opened: give --trust to open it")
        yield _estimator(source, path, inputs, trust)
        return
    call = _opened(_Draft(source), target)
    recurrent = is_recurrent(call) and not source.endswith((".pt2", ".pt", ".pth"))
    choices: Any = [inputs]
    if not inputs and source.endswith(".pt2"):
        check_archive(path)
        choices = [exported_inputs(torch.export.load(path))]
    elif not inputs:
        if not isinstance(call, torch.nn.Module):
            raise ConfigError(f"{source}: a {type(call).__name__} does not say what it takes: {ASK}")
        choices = guesses(call)
    for tables in choices:
        if recurrent:
            yield _Draft(source, tables, recurrent=True)
        yield _Draft(source, tables)


def _estimator(source: str, path: Path, inputs: InputTables, trust: bool) -> _Draft:
    estimator = load_estimator(path, trust)
    methods = [one for one in ("predict", "predict_proba") if callable(getattr(estimator, one, None))] or ["transform"]
    kwargs = {"methods": {_OUTPUTS[one]: one for one in methods}}
    return _Draft(source, inputs or estimator_inputs(estimator), kwargs=kwargs, trust=trust)


def _opened(draft: _Draft, target: Path) -> Any:
    """What the source gives; of what goes in and out it needs the names alone."""
    some = [{"name": "x", "datatype": "FP32", "shape": []}]
    table = {"source": draft.source, "kwargs": draft.kwargs, "trust": draft.trust}
    config = {**table, "inputs": draft.inputs or some, "outputs": draft.outputs or some}
    try:
        call = open_source(ModelTable.model_validate(config), target)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        hint = not_imported(error, draft.source, Path.cwd())
        raise ConfigError(f"{draft.source}: {one_line(error)}{hint}") from error
    return call.eval() if isinstance(call, torch.nn.Module) and not draft.source.endswith(".pt2") else call


def _outputs(draft: _Draft, target: Path) -> list[dict[str, Any]]:
    if not draft.trust:
        return found_outputs(_opened(draft, target), draft.inputs)
    methods = draft.kwargs["methods"]
    answers = Estimator(load_estimator(target / draft.source, draft.trust), tuple(methods.values()))
    found = found_outputs(lambda x: dict(zip(methods, answers(x), strict=True)), draft.inputs)
    # Its numbers are FP64, which few callers want.
    return [{**one, "datatype": "FP32"} if one["datatype"] == "FP64" else one for one in found]


# files


def _place(origin: str) -> str | Path:
    """A source by name as it is; a file, or a folder, as a path. Raises ConfigError."""
    if not origin or (":" in origin and not Path(origin).exists()):
        return origin
    path = Path(origin)
    if not path.exists():
        raise ConfigError(f"from: expected package.module:Class, a model's file or a folder, got {origin!r}")
    return path


def _copied(origin: str | Path, target: Path) -> str:
    """Bring the model's files into the folder; the source that model.toml is to name."""
    if origin == "":
        (target / "model.py").write_text(_CODE)
        return "model.py:build"
    if isinstance(origin, str):
        return origin
    if origin.is_dir():
        if target.resolve().is_relative_to(origin.resolve()):
            raise ConfigError(f"{target}: expected a folder outside of {origin}, which is copied into it")
        skipped = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(origin, target, dirs_exist_ok=True, ignore=skipped)
        return _source_in(target, origin)
    for path in (origin, *origin.parent.glob(f"{origin.name}.data")):  # weights of a large ONNX graph are beside it
        shutil.copy(path, target / path.name)
    return _source_in(target, origin)


def _source_in(target: Path, origin: Path) -> str:
    if (target / FILE_NAME).is_file():
        return ""
    models = sorted(path.name for path in target.iterdir() if path.suffix in MODEL_FILES)
    if not models and (target / "model.py").is_file():
        return "model.py:build"
    if len(models) != 1:
        wanted = f"{FILE_NAME}, model.py with a callable build, or one of *{', *'.join(MODEL_FILES)}"
        raise ConfigError(f"{origin}: expected {wanted}, found {', '.join(models) or 'none'}")
    return models[0]


def _request(target: Path, name: str, tables: InputTables) -> str:
    """Write a request of one row; the command that sends it."""
    specs = [spec for spec in specs_of(tables) if not spec.made]
    row = request_row(tables)
    place = target.as_posix()
    if len(specs) == 1 and row.arrays[0].size > _MOST_VALUES:
        np.save(target / "request.npy", row.arrays[0])
        kind = "-H 'Content-Type: application/x-npy'"
        return f"curl localhost:8000/predict/{name} {kind} --data-binary @{place}/request.npy"
    (target / "request.json").write_text(json.dumps(_body(specs, row)) + "\n")
    return f"curl localhost:8000/v2/models/{name}/infer --json @{place}/request.json"


def _body(specs: Sequence[TensorSpec], row: SampleRow) -> dict[str, Any]:
    inputs = []
    for spec, array in zip(specs, row.arrays, strict=True):
        data = [_json(value) for value in array.reshape(-1)]
        inputs.append({"name": spec.name, "shape": [1, *array.shape], "datatype": spec.datatype, "data": data})
    return {"inputs": inputs}


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return round(float(value), 3) if isinstance(value, np.floating) else value.item()


def _value(value: Any) -> str:
    """A value as TOML writes it: JSON does so too, but for tables."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
