"""Opens the `source` of a model.toml:

    model.py:build            a callable in a file beside model.toml, called with kwargs; or an nn.Module, as it is
    package.module:callable   the same from an installed package
    hf:FOLDER_OR_ID           transformers; inputs go in and outputs come out by name, or as a `task` says
    torchvision:NAME          torchvision.models.get_model
    timm:NAME                 timm.create_model
    model.pt2                 torch.export.save's archive
    model.pt                  TorchScript
    model.onnx                a graph that onnxruntime computes
    model.joblib              an estimator of scikit-learn
    model.ubj, model.json     trees of XGBoost; model.txt those of LightGBM

A refused file gets an error that says what to do instead. Nothing is unpickled to find out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from torch import nn

from app.errors import ConfigError
from app.models.description.config import ModelTable
from app.models.process_state import ProcessState, named
from app.models.sources import hubs
from app.models.sources.estimator import open_estimator
from app.models.sources.imports import import_callable, one_at_a_time
from app.models.sources.onnx_model import open_onnx
from app.models.sources.torch_files import load_exported, open_torchscript
from app.models.sources.trees import TREE_FILES, open_trees

_log = logging.getLogger("starling.models")

#: Suffixes of models' files: those that are looked for in a folder, and all that a source may name.
MODEL_FILES = (".pt2", ".pt", ".pth", ".onnx", ".joblib", ".ubj")
NAMED_FILES = (*MODEL_FILES, ".json", ".txt")
_WEIGHTS = "expected a model, got a file of weights: name it by weights, beside a source that builds the network"
_CONVERT = "expected ONNX: convert it with tf2onnx to model.onnx"
_PICKLE = (
    "expected no pickle, which may run any code as it is opened: save model.state_dict() and name that file by weights "
    '(PyTorch), or joblib.dump(pipeline, "model.joblib") with trust = true (scikit-learn)'
)
#: Suffixes of other files, with the error that says what to do.
_INSTEAD = {
    **dict.fromkeys((".safetensors", ".ckpt", ".bin"), _WEIGHTS),
    **dict.fromkeys((".pkl", ".pickle"), _PICKLE),
    **dict.fromkeys((".h5", ".keras", ".pb", ".tflite"), _CONVERT),
}
#: The allowed key of `kwargs` for a file, by its suffix.
_KWARGS = {".onnx": "threads", ".joblib": "methods"}


def open_source(config: ModelTable, folder: Path) -> Any:
    """Open the source. Raises whatever the user's code and the libraries raise."""
    kind, colon, rest = config.source.partition(":")
    if not colon and PurePath(kind).suffix in (*NAMED_FILES, *_INSTEAD):
        return _open_file(config, folder / kind)
    if not kind or not rest:
        raise ConfigError(
            "expected model.py:CALLABLE, package.module:CALLABLE, FILE.pt2, FILE.pt, FILE.onnx, FILE.joblib, FILE.ubj, "
            "hf:FOLDER_OR_ID, torchvision:NAME or timm:NAME"
        )
    if kind == "hf":
        return hubs.open_transformers(rest, folder, config.kwargs)
    if kind == "torchvision":
        return hubs.open_torchvision(rest, config.kwargs)
    if kind == "timm":
        return hubs.open_timm(rest, config.kwargs)
    with one_at_a_time(), _as_before(config.source):
        found = import_callable(kind, rest, folder)
        # A module of this name is the model. Called, it would take its inputs for kwargs.
        return found if isinstance(found, nn.Module) and not config.kwargs else found(**config.kwargs)


@contextmanager
def _as_before(source: str) -> Iterator[None]:
    """Put back settings that the code changes, because all models of the process share them."""
    state = ProcessState()
    try:
        yield
    finally:
        if changed := state.put_back(always=True):
            _log.warning(
                "source %r set %s, which every model of the server would have: put back; where its calls need it, set "
                "it there, and for that long", source, named(changed),
            )  # fmt: skip


def _open_file(config: ModelTable, path: Path) -> Any:
    if path.suffix in _INSTEAD:
        raise ConfigError(_INSTEAD[path.suffix])
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    known = _KWARGS.get(path.suffix, "")
    for key in config.kwargs:
        if key != known:
            wanted = f"no more than {known}" if known else "none"
            raise ConfigError(f"kwargs.{key}: expected {wanted}, a model's file takes no arguments")
    if path.suffix == ".onnx":
        return open_onnx(path, config)
    if path.suffix == ".joblib":
        return open_estimator(path, config)
    if path.suffix in TREE_FILES:
        return open_trees(path, config)
    return load_exported(path).module() if path.suffix == ".pt2" else open_torchscript(path)
