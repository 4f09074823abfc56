"""Sources that are one file beside model.toml, by its suffix: an archive, a graph, a fitted estimator.

What looks like a model and is refused says what to do instead; nothing is unpickled to find out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import nn

from app.errors import ConfigError
from app.models.description.config import ModelTable
from app.models.sources.archive import check_archive
from app.models.sources.estimator import open_estimator
from app.models.sources.onnx_model import open_onnx
from app.models.sources.torchscript import open_torchscript

_WEIGHTS = "expected a model, got a file of weights: name it by weights, beside a source that builds the network"
#: What else people have: suffix -> what to do.
_INSTEAD = {
    ".safetensors": _WEIGHTS,
    ".ckpt": _WEIGHTS,
    ".bin": _WEIGHTS,
    ".pkl": "expected no pickle, which may run any code as it is opened: save model.state_dict() and name that file by "
    'weights (PyTorch), or joblib.dump(pipeline, "model.joblib") with trust = true (scikit-learn)',
    ".h5": "expected ONNX: convert it with tf2onnx to model.onnx",
    ".keras": "expected ONNX: convert it with tf2onnx to model.onnx",
    ".pb": "expected ONNX: convert it with tf2onnx to model.onnx",
    ".tflite": "expected ONNX: convert it with tf2onnx to model.onnx",
}  # fmt: skip
_INSTEAD[".pickle"] = _INSTEAD[".pkl"]
_SERVED = (".pt2", ".pt", ".pth", ".onnx", ".joblib")


def is_file_source(source: str) -> bool:
    return ":" not in source and PurePath(source).suffix in (*_SERVED, *_INSTEAD)


def has_one_mode(source: str) -> bool:
    """An exported module was traced in one mode and refuses to change it."""
    return source.endswith(".pt2")


def open_file(config: ModelTable, folder: Path) -> Any:
    """The callable in the file that `source` names. Raises ConfigError, and what torch and others raise."""
    path = folder / config.source
    suffix = path.suffix
    if suffix in _INSTEAD:
        raise ConfigError(_INSTEAD[suffix])
    if suffix == ".onnx":
        return open_onnx(path, config.inputs, config.outputs, config.kwargs, config.batching.max_batch)
    if suffix == ".joblib":
        return open_estimator(path, config.inputs, config.outputs, config.kwargs, config.trust)
    _no_kwargs(config.kwargs)
    return _open_archive(path) if suffix == ".pt2" else open_torchscript(path)


def _no_kwargs(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        raise ConfigError("expected no kwargs: an exported model takes none")


def _open_archive(path: Path) -> nn.Module:
    check_archive(path)
    return torch.export.load(path).module()
