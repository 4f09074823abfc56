"""Opens files that torch saves, after checks: archives of torch.export, TorchScript, weights.

An archive of torch.export is refused if anything in it would be unpickled, or loaded as a library: one exported in the
ordinary way has neither. TorchScript runs no Python code. A file of `torch.save` is a pickle, and is refused.

This is no sandbox: like model code, an archive must come from a source whose programs you would run.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import fx, nn
from torch.export.graph_signature import ConstantArgument, InputKind

from app.errors import ConfigError
from app.models.base import one_line
from app.models.model_files import file_at

#: Members of an archive that hold no pickle, below its root folder. Configurations and samples are read as well.
_PLAIN_MEMBER = re.compile(
    r"data/weights/(weight_\d+|[^/]+_weights_config\.json)|data/constants/(tensor_\d+|[^/]+_constants_config\.json)"
    r"|models/[^/]+\.json|extra/.*|archive_format|archive_version|byteorder|version|\.data/.*"
)
_SAMPLES = re.compile(r"data/sample_inputs/[^/]+\.pt")
_OTHERS = (
    "A file of torch.export.save is called model.pt2; one of torch.save is a pickle, which is not opened because it "
    "may run any code: save model.state_dict(), unless that is what it holds, name that file by weights, and build "
    'the network in model.py (source = "model.py:build")'
)

# archives of torch.export


def load_exported(path: Path) -> torch.export.ExportedProgram:
    """The program of an archive. Raises ConfigError, and what torch raises."""
    check_archive(path)
    return torch.export.load(path)


class _Structured(nn.Module):
    """A program that was exported with keywords, dicts, lists or constants, as None: takes the tensors alone, in the
    order of its graph. `given`: all that it takes; `tensors`: those of it.
    """

    def __init__(self, module: nn.Module, spec: Any, given: Sequence[Any], tensors: Sequence[Any]) -> None:
        super().__init__()
        self.module, self.spec, self.given = module, spec, given
        self.__signature__ = Signature([Parameter(one.name, Parameter.POSITIONAL_ONLY) for one in tensors])

    def forward(self, *values: Any) -> Any:
        rest = iter(values)
        filled = [one.value if isinstance(one, ConstantArgument) else next(rest) for one in self.given]
        arguments, keywords = self.spec.unflatten(filled)
        return self.module(*arguments, **keywords)


def exported_module(program: torch.export.ExportedProgram) -> nn.Module:
    """The program as a module that takes one tensor an input."""
    module, spec = program.module(), program.call_spec.in_spec
    arguments, keywords = spec.children()
    given = [one.arg for one in program.graph_signature.input_specs if one.kind is InputKind.USER_INPUT]
    tensors = [one for one in given if not isinstance(one, ConstantArgument)]
    if tensors == given and not keywords.num_leaves and all(one.is_leaf() for one in arguments.children()):
        return module
    return _Structured(module, spec, given, tensors)


def free_graphs(module: nn.Module) -> nn.Module:
    """The module, without the methods by which an exported one refuses `eval`, also of what contains it: its mode is
    fixed, and nothing else is lost. Nor do its graphs refer to their own module any more: when it is unloaded its
    weights are then freed at once, and not by a garbage collection.
    """
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            part.graph.owning_module = None
            for name in ("train", "eval"):
                vars(part).pop(name, None)
    return module


def check_archive(path: Path) -> None:
    """Raise ConfigError naming the file and the member unless every member of the archive is plain data.

    torch reads these archives with its own parser, which may find other members in the same bytes than Python's, so the
    members that torch finds are checked. Older archives it reads with Python's; the names of their members are refused.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
        for name in names:
            if not _SAMPLES.fullmatch(name) and not _PLAIN_MEMBER.fullmatch(name):
                what = "expected an archive of plain tensors; this member may run code when opened"
                raise ConfigError(f"{path}: {name}: {what}")
        reader: Any = torch._C.PyTorchFileReader(str(path))
        records: list[str] = reader.get_all_records()
        if sorted(records) != sorted(names) or len({name.lower() for name in records}) < len(records):
            raise ConfigError(f"{path}: expected an archive with one member of each name, by any reader")
        for name in records:
            _check_member(reader, name, path)
    except (OSError, zipfile.BadZipFile, ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: expected an archive written by torch.export.save: {one_line(error)}") from None


def _check_member(reader: Any, name: str, path: Path) -> None:
    if _SAMPLES.fullmatch(name):
        samples = reader.get_record(name)
        try:
            if samples:
                torch.load(io.BytesIO(samples), weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise ConfigError(
                f"{path}: {name}: expected sample inputs of plain tensors, export with such: {one_line(error)}"
            ) from None
    elif name.endswith("_config.json"):
        for key, payload in json.loads(reader.get_record(name)).get("config", {}).items():
            plain = not payload.get("use_pickle") and re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"])
            if not plain:
                raise ConfigError(f"{path}: {name}: {key}: expected a plain tensor, got a pickled object")


# TorchScript


def open_torchscript(path: Path) -> nn.Module:
    """The scripted or traced module, on the CPU. Raises ConfigError saying what else the file is and what to do."""
    members = _members(path)
    if "constants.pkl" not in members or not any(name.startswith("code/") for name in members):
        raise ConfigError(f"{path}: expected TorchScript, as torch.jit.save writes it. {_OTHERS}")
    load: Any = torch.jit.load
    module: nn.Module = load(str(path), map_location="cpu")
    return module


def _members(path: Path) -> set[str]:
    """The names in an archive below its root folder; none where the file is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.partition("/")[2] for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


# weights and pickles


def load_weights(built: Any, path: Path) -> None:
    """Load a state dict strictly: every weight of the module and no other. Raises ConfigError naming the file."""
    if not isinstance(built, nn.Module):
        raise ConfigError(f"{path}: weights need a source that returns an nn.Module, got {type(built).__name__}")
    if any(name.startswith("code/") for name in _members(file_at(path))):
        raise ConfigError(f"{path}: expected weights, got TorchScript, a whole model: name it by source")
    try:
        with path.open("rb") as file:  # whatever it is called: torch.load, too, goes by the name of a path
            if file.read(9)[8:] != b"{":
                file.seek(0)
                found = _state_dict(file)
                _refuse_wrapped(found, built)
                built.load_state_dict(found, strict=True)
                return
        from safetensors import safe_open
        from safetensors.torch import load_model

        with safe_open(path, "pt") as tensors:
            _refuse_wrapped(tensors.keys(), built)
        load_model(built, path, strict=True)  # knows tied weights, which are saved once
    except (pickle.UnpicklingError, EOFError):  # torch's message is ten lines long and suggests opening it anyway
        what = "got something else, such as a pickled model: save model.state_dict() instead"
        raise ConfigError(f"{path}: expected safetensors or a state dict of plain tensors, {what}") from None
    except Exception as error:  # each format has its own errors for a missing, cut or foreign file
        raise ConfigError(f"{path}: expected weights that fit the model: {one_line(error)}") from None


def _refuse_wrapped(names: Iterable[str], built: nn.Module) -> None:
    """Raise ValueError for the weights of a wrapper, as DataParallel or torch.compile make one: torch would list each
    weight twice, as missing and as unexpected.
    """
    found, own = set(names), built.state_dict().keys()
    parts = next(iter(found), "").split(".")
    for prefix in (".".join(parts[:end]) for end in range(1, len(parts))):
        if not found & own and found <= {f"{prefix}.{name}" for name in own}:
            raise ValueError(f"its names begin with {prefix!r}: save model.{prefix}.state_dict(), that part alone")


def _state_dict(file: BinaryIO) -> Any:
    found = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise ValueError(f"expected a state dict, got {type(found).__name__}")  # noqa: TRY004 - it becomes a ConfigError
    for key, value in found.items():  # a checkpoint of a training has more than weights
        if isinstance(value, dict) and value and all(isinstance(one, torch.Tensor) for one in value.values()):
            raise ValueError(f"it is a checkpoint that has them below {key!r}: save that state dict alone")
    return found
