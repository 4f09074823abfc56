"""Checks a torch.export archive before torch opens it.

`torch.export.load` unpickles without restriction whatever an archive marks as pickled: odd tensors, script objects,
sample inputs it cannot read otherwise, and compiled archives bring a shared library. A model exported in the ordinary
way has none of these, so an archive that has one is refused. This guards against pickles and is no sandbox: like model
code, an archive must come from a source whose programs you would run.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from pathlib import Path

import torch

from app.errors import ConfigError

#: Members of an archive that hold no pickle, below its root folder. Configurations and samples are read as well.
_PLAIN = re.compile(
    r"data/weights/(weight_\d+|[^/]+_weights_config\.json)|data/constants/(tensor_\d+|[^/]+_constants_config\.json)"
    r"|models/[^/]+\.json|extra/.*|archive_format|archive_version|byteorder|version|\.data/.*"
)
_SAMPLES = re.compile(r"data/sample_inputs/[^/]+\.pt")


def check_archive(path: Path) -> None:
    """Raise ConfigError naming the file and the member unless every member of the archive is plain data."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                _check_member(archive, name, path)
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise ConfigError(f"{path}: expected an archive written by torch.export.save: {error}") from None


def _check_member(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    member = name.partition("/")[2]
    if _SAMPLES.fullmatch(member):
        samples = archive.read(name)
        try:
            if samples:
                torch.load(io.BytesIO(samples), weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise ConfigError(
                f"{path}: {name}: expected sample inputs of plain tensors, export with such: {error}"
            ) from None
    elif not _PLAIN.fullmatch(member):
        raise ConfigError(f"{path}: {name}: expected an archive of plain tensors; this member may run code when opened")
    elif member.endswith("_config.json"):
        for key, payload in json.loads(archive.read(name)).get("config", {}).items():
            plain = not payload.get("use_pickle") and re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"])
            if not plain:
                raise ConfigError(f"{path}: {name}: {key}: expected a plain tensor, got a pickled object")
