"""Opens the `source` of a model.toml:

    model.py:build            a callable in a file beside model.toml, called with kwargs; or an nn.Module, as it is
    package.module:callable   the same from an installed package
    hf:FOLDER_OR_ID           transformers; inputs go in and outputs come out by name, or as a `task` says
    torchvision:NAME          torchvision.models.get_model
    timm:NAME                 timm.create_model
    model.pt2                 torch.export.save's archive
    model.pt                  TorchScript
    model.onnx                a graph that onnxruntime computes

Nothing is unpickled.
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
from app.models.model_files import file_at
from app.models.process_state import ProcessState, named
from app.models.sources import hubs
from app.models.sources.imports import PATCHING, held, import_callable
from app.models.sources.onnx_model import open_onnx
from app.models.sources.torch_files import exported_module, load_exported, open_torchscript

_log = logging.getLogger("starling.models")

#: Suffixes of models' files.
MODEL_FILES = (".pt2", ".pt", ".pth", ".onnx")


def open_source(config: ModelTable, folder: Path) -> Any:
    """Open the source. Raises whatever the user's code and the libraries raise."""
    kind, colon, rest = config.source.partition(":")
    if not colon and PurePath(kind).suffix in MODEL_FILES:
        return _open_file(config, folder / kind)
    if not kind or not rest:
        raise ConfigError(
            "expected model.py:CALLABLE, package.module:CALLABLE, FILE.pt2, FILE.pt, FILE.onnx, "
            "hf:FOLDER_OR_ID, torchvision:NAME or timm:NAME"
        )
    if kind == "hf":
        return hubs.open_transformers(rest, folder, config.kwargs)
    if kind == "torchvision":
        return hubs.open_torchvision(rest, config.kwargs)
    if kind == "timm":
        return hubs.open_timm(rest, config.kwargs)
    with held(PATCHING), _as_before(config.source):
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
                "it there, and for that long; a level of the log, for its own loggers", source, named(changed),
            )  # fmt: skip


def _open_file(config: ModelTable, path: Path) -> Any:
    file_at(path)
    known = ["threads"] if path.suffix == ".onnx" else []
    for key in config.kwargs:
        if key not in known:
            wanted = "no more than threads" if known else "none"
            raise ConfigError(f"kwargs.{key}: expected {wanted}, a model's file takes no arguments")
    if path.suffix == ".onnx":
        return open_onnx(path, config)
    return exported_module(load_exported(path)) if path.suffix == ".pt2" else open_torchscript(path)
