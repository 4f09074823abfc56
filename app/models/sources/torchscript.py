"""A TorchScript archive, `model.pt`, checked before torch opens it.

Its programs are TorchScript's own, and torch reads its objects with a reader that knows no Python classes: no Python
code runs. A file of `torch.save` has the same suffix and is a pickle. It is refused without being opened.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.errors import ConfigError
from app.models.sources.pickles import pickled_class


def open_torchscript(path: Path) -> nn.Module:
    """The scripted or traced module, on the CPU. Raises ConfigError saying what else the file is and what to do."""
    check_torchscript(path)
    load: Any = torch.jit.load
    module: nn.Module = load(str(path), map_location="cpu")
    return module


def check_torchscript(path: Path) -> None:
    """Raise ConfigError unless the file is an archive of `torch.jit.save`."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    members = _members(path)
    if any(name.startswith("code/") for name in members) and "constants.pkl" in members:
        return
    if any(name.startswith("models/") for name in members):
        raise ConfigError(f"{path}: expected TorchScript, got an archive of torch.export.save: call it model.pt2")
    if "data.pkl" not in members and not _begins_like_a_pickle(path):
        raise ConfigError(f"{path}: expected an archive of torch.jit.save")
    build = 'name that file by weights, and build the network in model.py (source = "model.py:build")'
    if found := pickled_class(path):
        raise ConfigError(
            f"{path}: expected TorchScript, got a pickle ({found}), which is not opened because it may run any code: "
            f"save model.state_dict() instead, {build}"
        )
    raise ConfigError(f"{path}: expected TorchScript, got a state dict, which is weights without a network: {build}")


def _members(path: Path) -> set[str]:
    """The names in an archive below its root folder; none where the file is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.partition("/")[2] for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


def _begins_like_a_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"\x80"
