"""Loads a model from any of these sources as a `contract.Model`.

    model.py:build            a callable in a file beside model.toml, called with kwargs
    package.module:callable   the same from an installed package
    model.pt2                 torch.export.save's archive; model.pt, model.onnx and model.joblib see files.py
    hf:FOLDER_OR_ID           transformers; inputs go in and outputs come out by name, or as a `task` says
    torchvision:NAME          torchvision.models.get_model
    timm:NAME                 timm.create_model

Every error becomes a ConfigError: the code is the user's, and one broken model must not take the server down.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import logging
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import nn

from app.contract import Model, ModelInfo, ModelSource, SampleRow
from app.errors import ConfigError
from app.models.base import one_line
from app.models.checks.sample_files import read_samples
from app.models.checks.samples import example_row, short_lengths, stack
from app.models.description.config import FILE_NAME, CheckNames, ModelTable, model_info, read_config
from app.models.recurrent.cells import CellModel, recurrent_model, try_cell
from app.models.recurrent.recurrent import Recurrent
from app.models.recurrent.rnn import by_its_layer
from app.models.sources import hubs
from app.models.sources.files import has_one_mode, is_file_source, open_file
from app.models.sources.imports import not_imported, shadowed
from app.models.sources.pickles import pickled_class
from app.models.stages.staged import Staged
from app.models.stages.stages import in_stages
from app.models.tasks.loading import load_task

log = logging.getLogger("starling.models")

#: Held while a file of models is imported: two servers in one process may load the same file, under one name.
_IMPORTING = threading.RLock()


def load(
    source: ModelSource,
    overrides: Mapping[str, object] | None = None,
    limits: Mapping[str, int] | None = None,
    check_names: CheckNames | None = None,
) -> Model:
    """Build the model that `source.folder` describes, on the CPU, in eval mode, with its weights.

    `overrides` beat model.toml's `[batching]` and `row_check`. `limits` are set as attributes on the object that the
    source returned where it has an attribute of that name (`max_pixels`). Blocks, possibly for minutes: never call it
    on the loop. Raises ConfigError, whatever the model's own code raises.
    """
    config = read_config(source.folder)
    given = dict(overrides or {})
    row_check = str(given.pop("row_check", None) or config.row_check)
    if config.task is not None:
        return load_task(config, source, given, limits or {}, row_check, check_names)
    info = model_info(config, source, given, check_names, own_axes=True)
    samples = () if config.warmup is None else read_samples(source.folder / config.warmup.file, info)
    built = _build(config, source.folder, info)
    # who has weights, hooks and limits
    owner = built.cell if isinstance(built, Recurrent) else built
    if config.weights is not None:
        _load_weights(owner, source.folder / config.weights)
    call = hubs.ByName(built, info) if config.source.startswith("hf:") else built
    for part in (owner, call):
        if isinstance(part, nn.Module) and not has_one_mode(config.source):
            part.eval()
    for name, value in (limits or {}).items():
        if hasattr(owner, name):
            setattr(owner, name, value)
    takes = _first_to_take_inputs(call)
    takes_parameters = _takes_parameters(takes, len(info.inputs))
    _check_signature(takes, config, source, takes_parameters)
    if config.recurrent:
        call, takes_parameters = _by_layer(call, info, source), False
    if isinstance(call, Recurrent):
        call, info = _by_cells(call, info, config, source, samples)
    else:
        model_info(config, source, given, check_names)  # no axes of their own for other models
    model = Model(
        info=info,
        call=call,
        decode=getattr(owner, "decode", None),
        present=getattr(owner, "present", None),
        takes_parameters=takes_parameters,
        samples=samples,
        row_check=row_check,
        profile=config.profile,
    )
    return in_stages(model, config, source.folder / FILE_NAME)


def _build(config: ModelTable, folder: Path, info: ModelInfo) -> Any:
    """The object the source gives. Raises ConfigError naming model.toml and its key `source`."""
    where = f"{folder / FILE_NAME}: source {config.source!r}"
    try:
        built = open_source(config, folder)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:  # a user's code may raise anything, and even leave
        raise ConfigError(f"{where}: {one_line(error)}{not_imported(error, config.source, folder)}") from error
    if not callable(built) and not isinstance(built, Recurrent):
        raise ConfigError(f"{where}: expected an nn.Module or another callable, got {type(built).__name__}")
    return built


def open_source(config: ModelTable, folder: Path) -> Any:
    """What the source gives, as it is. Raises whatever the user's code and the libraries raise."""
    kind, _, rest = config.source.partition(":")
    if kind == "hf" and rest:
        return hubs.open_transformers(rest, folder, config.kwargs)
    if kind == "torchvision" and rest:
        return hubs.open_torchvision(rest, config.kwargs)
    if kind == "timm" and rest:
        return hubs.open_timm(rest, config.kwargs)
    if is_file_source(config.source):
        return open_file(config, folder)
    if not kind or not rest:
        raise ConfigError(
            "expected model.py:CALLABLE, package.module:CALLABLE, FILE.pt2, FILE.pt, FILE.onnx, FILE.joblib, "
            "hf:FOLDER_OR_ID, torchvision:NAME or timm:NAME"
        )
    module = _load_file(folder / kind) if kind.endswith(".py") else importlib.import_module(kind)
    build = module
    for part in rest.split("."):
        if not hasattr(build, part):
            other = shadowed(kind, folder)
            raise ConfigError(f"expected a callable {rest!r} in {kind}, which has none of that name{other}")
        build = getattr(build, part)
    if not callable(build):
        raise ConfigError(f"expected {rest!r} in {kind} to be callable, got {type(build).__name__}")
    return build(**config.kwargs)


class _FreshLoader(SourceFileLoader):
    """Compiles from source each time: bytecode files are matched by whole seconds, too coarse for a reload after an
    edit, and a repository may be read-only.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_file(path: Path) -> ModuleType:
    """Run a Python file as a module under a name of its own; `from . import x` finds files beside it."""
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    name = f"starling_model_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_loader(name, _FreshLoader(name, str(path)), is_package=False)
    if not isinstance(spec, ModuleSpec) or spec.loader is None:
        raise ConfigError(f"{path}: cannot be loaded as Python")
    spec.submodule_search_locations = [str(path.parent)]
    module = importlib.util.module_from_spec(spec)
    with _IMPORTING:
        # Modules of an earlier load are removed, or a reload would import the old neighbours. A model that still serves
        # keeps its own globals. The name must be in sys.modules while the code runs: dataclasses look themselves up.
        # Other threads may import meanwhile, so what is walked is a copy, which is made in one step.
        for stale in [key for key in list(sys.modules) if key == name or key.startswith(f"{name}.")]:
            sys.modules.pop(stale, None)
        importlib.invalidate_caches()
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    return module


def _load_weights(built: Any, path: Path) -> None:
    """Load a state dict strictly: every weight of the module and no other. Raises ConfigError naming the file."""
    if not isinstance(built, nn.Module):
        raise ConfigError(f"{path}: weights need a source that returns an nn.Module, got {type(built).__name__}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_model

            load_model(built, path, strict=True)  # knows tied weights, which are saved once
        else:
            built.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), strict=True)
    except pickle.UnpicklingError as error:  # torch's message is of ten lines and suggests to open it all the same
        found = pickled_class(path)
        what = f"got a pickle ({found}): save model.state_dict() instead" if found else one_line(error)
        raise ConfigError(f"{path}: expected safetensors or a state dict of plain tensors, {what}") from None
    except Exception as error:  # each format has its own errors for a missing, cut or foreign file
        raise ConfigError(f"{path}: expected weights that fit the model: {one_line(error)}") from None


def _by_layer(module: Any, info: ModelInfo, source: ModelSource) -> Recurrent:
    try:
        return by_its_layer(module, info)
    except ConfigError as error:
        raise ConfigError(f"{source.folder / FILE_NAME}: {error}") from None


def _by_cells(
    declared: Recurrent, info: ModelInfo, config: ModelTable, source: ModelSource, samples: Sequence[SampleRow]
) -> tuple[CellModel, ModelInfo]:
    """What runs a recurrent model, and what that is called with. Raises ConfigError naming the file and the key."""
    path = source.folder / FILE_NAME
    try:
        model, called_with = recurrent_model(declared, info)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    clients = info.client_inputs
    row = samples[0] if samples else example_row(clients, short_lengths(clients, 2))
    try:
        try_cell(model, *stack(called_with.inputs, [row]))
    except ConfigError as error:
        raise ConfigError(f"{path}: source {config.source!r}: {error}") from None
    except (Exception, SystemExit) as error:
        # The row may be to blame. Whoever tries the model next tells what it raises.
        log.debug("model %s: two steps of one row: %s", info.name, one_line(error))
    return model.eval(), called_with


def _first_to_take_inputs(call: Any) -> Callable[..., Any]:
    """The callable that gets the inputs as declared."""
    first: Callable[..., Any] = call.stages[0] if isinstance(call, Staged) else call
    if isinstance(call, Recurrent):
        first = call.cell.start if call.starts else _only_input
    keywords = {"lengths": None} if isinstance(call, Recurrent) and call.wants_lengths else {}
    return partial(first, **keywords) if keywords else first


def _only_input(x: Any) -> Any:
    """What a cell without `start` does with its input."""
    return x


def _check_signature(call: Callable[..., Any], config: ModelTable, source: ModelSource, takes_parameters: bool) -> None:
    """Raise ConfigError when the callable cannot take as many arguments as there are inputs.

    At its first call that would be a TypeError like any other, which might be due to the values.
    """
    target = call.forward if isinstance(call, nn.Module) else call
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some callables of C extensions have no signature
        return
    try:
        signature.bind(*config.inputs, **({"parameters": []} if takes_parameters else {}))
    except TypeError as error:
        names = ", ".join(table.name for table in config.inputs)
        raise ConfigError(
            f"{source.folder / FILE_NAME}: inputs: expected as many as {config.source!r} takes arguments, "
            f"got {names}: {error}"
        ) from None


def _takes_parameters(call: Callable[..., Any], inputs: int) -> bool:
    """True where the call has a keyword `parameters` that is not one of its first arguments, the inputs."""
    target = call.forward if isinstance(call, nn.Module) else call
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some callables of C extensions have none
        return False
    for index, (name, parameter) in enumerate(signature.parameters.items()):
        if name == "parameters":
            keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            return keyword or (parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and index >= inputs)
    return False
