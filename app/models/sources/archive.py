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
from typing import Any

import torch

from app.errors import ConfigError
from app.models.base import one_line

#: Members of an archive that hold no pickle, below its root folder. Configurations and samples are read as well.
_PLAIN = re.compile(
    r"data/weights/(weight_\d+|[^/]+_weights_config\.json)|data/constants/(tensor_\d+|[^/]+_constants_config\.json)"
    r"|models/[^/]+\.json|extra/.*|archive_format|archive_version|byteorder|version|\.data/.*"
)
_SAMPLES = re.compile(r"data/sample_inputs/[^/]+\.pt")


def check_archive(path: Path) -> None:
    """Raise ConfigError naming the file and the member unless every member of the archive is plain data.

    torch reads these archives by a parser of its own, which may find other members in the same bytes than Python's, so
    what is checked is what that one finds. Older archives it reads by Python's; their members' names are refused.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
        for name in names:
            _check_name(name, path)
        reader: Any = torch._C.PyTorchFileReader(str(path))
        records: list[str] = reader.get_all_records()
        if sorted(records) != sorted(names) or len({name.lower() for name in records}) < len(records):
            raise ConfigError(f"{path}: expected an archive with one member of each name, whoever reads it")
        for name in records:
            _check_member(reader, name, path)
    except (OSError, zipfile.BadZipFile, ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: expected an archive written by torch.export.save: {one_line(error)}") from None


def _check_name(name: str, path: Path) -> None:
    if not _SAMPLES.fullmatch(name) and not _PLAIN.fullmatch(name):
        raise ConfigError(f"{path}: {name}: expected an archive of plain tensors; this member may run code when opened")


def _check_member(reader: Any, name: str, path: Path) -> None:
    if _SAMPLES.fullmatch(name):
        samples = reader.get_record(name)
        try:
            if samples:
                torch.load(io.BytesIO(samples), weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise ConfigError(
                f"{path}: {name}: expected sample inputs of plain tensors, export with such: {error}"
            ) from None
    elif name.endswith("_config.json"):
        for key, payload in json.loads(reader.get_record(name)).get("config", {}).items():
            plain = not payload.get("use_pickle") and re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"])
            if not plain:
                raise ConfigError(f"{path}: {name}: {key}: expected a plain tensor, got a pickled object")
