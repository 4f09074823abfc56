"""Loads a model.toml as a `contract.Model`: reads the file, opens its source, fits the result to the declared tensors,
and cuts it into stages if asked to.

Every error becomes a ConfigError: the code is the user's, and one broken model must not take the server down.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.contract import Checks, Front, Model, ModelInfo, ModelSource, SampleRow
from app.errors import ConfigError, naming
from app.models.base import networks_of, one_line, with_place
from app.models.checks.advice import advice_on
from app.models.checks.calling import compare_with_whole, only_exceptions
from app.models.checks.sample_files import read_samples
from app.models.checks.samples import short_lengths
from app.models.description.config import FILE_NAME, ModelTable, is_onnx, model_info, read_config
from app.models.description.declared_specs import refuse_own_axes
from app.models.recurrent.cells import CellModel
from app.models.recurrent.recurrent import Recurrent
from app.models.recurrent.rnn import by_its_layer
from app.models.sources.hubs import as_declared
from app.models.sources.imports import edited_packages, source_hint
from app.models.sources.namespace import Namespace, current
from app.models.sources.onnx_model import with_graph
from app.models.sources.opening import open_source
from app.models.sources.torch_files import free_graphs, load_weights
from app.models.sources.tracing import trace_one_at_a_time
from app.models.stages.staged import Staged
from app.models.tasks.task_opening import open_task

_log = logging.getLogger("starling.models")
_UNLIKE_STEPS = "; recurrent = true runs no hooks, nor what a module changes in itself: remove them, or this key"
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def load(source: ModelSource, overrides: Mapping[str, object] | None = None) -> Model:
    """Build the model that `source.folder` describes, on the CPU, in eval mode, with its weights.

    `overrides` take precedence over model.toml's `[batching]` and `row_check`. Blocks, possibly for minutes: never
    call it on the loop. Raises ConfigError, whatever the model's own code raises.
    """
    if source.error:
        raise ConfigError(source.error)
    config = read_declared(source.folder)
    trace_one_at_a_time()
    namespace = Namespace(source.folder)
    try:
        with namespace.loading(), only_exceptions():
            model = _load(source, config, dict(overrides or {}))
    except BaseException as error:
        namespace.close()
        if isinstance(error, ConfigError) or not isinstance(error, Exception):
            raise
        # what the source returned may raise wherever it is looked at, as a __getattr__ of its own
        raise ConfigError(f"{source.folder / FILE_NAME}: {with_place(one_line(error), error)}") from error
    notes = model.note, edited_packages(namespace.outside)
    return replace(model, close=namespace.close, note="; ".join(filter(None, notes)))


def _load(source: ModelSource, config: ModelTable, settings: dict[str, object]) -> Model:
    row_check = str(settings.pop("row_check", None) or config.row_check)
    info = model_info(config, source, settings)
    if config.task is not None:
        model = _of_task(info, config, source.folder)
    else:
        model = _of_tensors(info, config, source.folder)
    checks = replace(model.checks, row_check=row_check, profile=config.profile, allow_untried=config.allow_untried)
    model = replace(model, checks=checks)
    model = _in_stages(model, config, source.folder / FILE_NAME)
    for network in networks_of(model):
        free_graphs(network).zero_grad()  # of a training while it loaded; what the checks find later is of a call
    return model


def read_declared(folder: Path) -> ModelTable:
    """model.toml, completed with the tensors that an ONNX graph declares. Raises ConfigError."""
    config = read_config(folder)
    return with_graph(config, folder) if is_onnx(config.source) else config


def _open(config: ModelTable, folder: Path, info: ModelInfo) -> Any:
    """Open the source. Raises ConfigError naming model.toml and its key `source`."""
    where = f"{folder / FILE_NAME}: source {config.source!r}"
    try:
        return open_task(config, folder, info) if config.task is not None else open_source(config, folder)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except BaseException as error:  # the user's code may raise anything, and even call sys.exit
        what = with_place(one_line(error), error)
        if (namespace := current()) is not None:
            what = what.replace(f"{namespace.name}.", "")  # names as its code has them
        advice = advice_on(error)
        hint = f"; {advice}" if advice else source_hint(error, config.source)
        raise ConfigError(f"{where}: {what}{hint}") from error


# a model of a task


def _of_task(info: ModelInfo, config: ModelTable, folder: Path) -> Model:
    """A model of tensors behind a front of texts, images and labels."""
    model: Model = _open(config, folder, info)
    if config.warmup is None or model.front is None:
        return model
    path = folder / config.warmup.file
    rows = read_samples(path, model.front.client_info(model.info))
    model.front.example = rows[0]
    return replace(model, checks=Checks(_read_by(model.front, rows, path)))


def _read_by(front: Front, rows: Sequence[SampleRow], path: Path) -> tuple[SampleRow, ...]:
    """Rows that clients send, translated to rows of the model."""
    found = []
    for row in rows:
        with naming(path):
            (read,) = front.reader.read([[array[None] for array in row.arrays]])
        for place in range(len(read.arrays[0])):
            own = {axis: lengths[place] for axis, lengths in (read.own_lengths or {}).items()} or read.lengths
            # of a task's inputs only texts have a variable axis: the tokens, which come first
            cut = max(own.values(), default=None)
            found.append(SampleRow(tuple(array[place][:cut] for array in read.arrays), own))
    return tuple(found)


# a model of the tensors that model.toml declares


def _of_tensors(info: ModelInfo, config: ModelTable, folder: Path) -> Model:
    path = folder / FILE_NAME
    samples = () if config.warmup is None else read_samples(folder / config.warmup.file, info)
    built = _open(config, folder, info)
    if isinstance(built, type) or not (callable(built) or isinstance(built, Recurrent)):
        got = f"the class {built.__name__}" if isinstance(built, type) else f"{type(built).__name__}, without __call__"
        raise ConfigError(f"{path}: source {config.source!r}: expected an nn.Module or another callable, got {got}")
    # the object that has the weights and hooks
    owner = built.cell if isinstance(built, Recurrent) else built
    weights = [*owner.named_parameters(), *owner.named_buffers()] if isinstance(owner, nn.Module) else []
    if empty := [name for name, value in weights if value.is_meta]:
        wanted = f"expected weights with values, got {empty[0]!r} on the device meta: build it on the CPU"
        raise ConfigError(f"{path}: source {config.source!r}: {wanted}")
    if config.weights is not None:
        load_weights(owner, folder / config.weights)
    call = as_declared(built, info) if config.source.startswith("hf:") else built
    for part in (owner, call):
        if isinstance(part, nn.Module):
            free_graphs(part).eval()
    takes_parameters = _takes_parameters(_first_to_take_inputs(call), config, path)
    if config.recurrent or isinstance(call, Recurrent):
        with naming(path):
            declared: Any = call
            if config.recurrent:
                declared, takes_parameters = by_its_layer(call, info), False
            steps = CellModel(declared, info).eval()
            if config.recurrent and not steps.info.own_axes:
                whole = Model(info, call, checks=Checks(samples))
                size, lengths = min(2, info.batching.max_batch), short_lengths(info.client_inputs)
                cells = replace(whole, info=steps.info, call=steps)
                compare_with_whole(whole, cells, "steps", [size], [lengths], hint=_UNLIKE_STEPS)
        call, info = steps, steps.info
    else:
        refuse_own_axes(path, info)
    decode = _hook(owner, "decode", "content_type", "body")
    known = _signature(decode)
    return Model(
        info=info,
        call=call,
        decode=decode,
        takes_fields=known is not None and "fields" in known.parameters,
        present=_hook(owner, "present", "outputs"),
        read_parameters=(lambda given: None) if takes_parameters else None,  # the model itself looks at them
        checks=Checks(samples),
    )


def _hook(owner: Any, name: str, *given: str) -> Callable[..., Any] | None:
    """A function or method of this name that takes what it would be given. A network's submodule or flag of the name
    is no hook, nor is a method of its own, as the `decode(z)` of an autoencoder. Raises ConfigError for an async one.
    """
    found: Callable[..., Any] | None = getattr(owner, name, None)
    if not callable(found) or isinstance(found, nn.Module):
        return None
    known = _signature(found)
    try:
        if known:
            known.bind_partial(*given)
    except TypeError:
        _log.warning("%s.%s is no hook, which would take %s", type(owner).__name__, name, " and ".join(given))
        return None
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise ConfigError(f"{type(owner).__name__}.{name}: define it without async and yield")
    return found


# the signature of what takes the inputs


def _first_to_take_inputs(call: Any) -> Callable[..., Any]:
    """The callable whose arguments are the declared inputs."""
    if isinstance(call, Recurrent):
        first: Any = call.cell.start if call.starts else lambda x: x
        return partial(first, lengths=None) if call.wants_lengths else first
    first = call.parts.calls[0] if isinstance(call, Staged) else call
    first = getattr(first, "_orig_mod", first)  # what torch.compile has wrapped
    return first.forward if isinstance(first, nn.Module) and not hasattr(first, "__signature__") else first


def _takes_parameters(call: Callable[..., Any], config: ModelTable, path: Path) -> bool:
    """Whether the callable has a keyword `parameters` behind its inputs. Raises ConfigError if it takes another number
    of arguments than there are inputs, or takes them in another order.

    Without this check the first would be a TypeError at the first call, as wrong values may raise, and the second would
    only give wrong answers.
    """
    signature = _signature(call)
    if signature is None:
        return False
    names = [table.name for table in config.inputs]
    kind = getattr(signature.parameters.get("parameters"), "kind", None)
    behind = "parameters" in list(signature.parameters)[len(names) :]
    takes = kind is _BY_NAME or (behind and kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        signature.bind(*names, **({"parameters": []} if takes else {}))
    except TypeError as error:
        raise ConfigError(
            f"{path}: inputs: expected as many as {config.source!r} takes arguments, got {', '.join(names)}: {error}; "
            "each is passed as an argument of its own, by their order, not by name, nor in a dict or list"
        ) from None
    arguments = [each.name for each in signature.parameters.values() if each.kind < each.VAR_POSITIONAL]
    if any(name in arguments and arguments.index(name) != place for place, name in enumerate(names)):
        raise ConfigError(
            f"{path}: inputs: expected them in the order of the arguments of {config.source!r}, without gaps: "
            f"{', '.join(arguments)}, got {', '.join(names)}"
        )
    return takes


def _signature(call: Callable[..., Any] | None) -> inspect.Signature | None:
    # of none a keyword: TorchScript knows nothing of a request's `parameters`
    kind, empty = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.empty
    try:
        if not isinstance(call, torch.ScriptMethod):
            code = getattr(call, "__code__", None)  # a decorator that takes neither *args nor **kwargs adapts them
            follow = code is None or bool(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
            return None if call is None else inspect.signature(call, follow_wrapped=follow)
        given = [(one.name, None if one.has_default_value() else empty) for one in call.schema.arguments[1:]]
        return inspect.Signature([inspect.Parameter(name, kind, default=default) for name, default in given])
    except (TypeError, ValueError):  # some callables of C extensions have none
        return None


# stages


def _in_stages(model: Model, config: ModelTable, path: Path) -> Model:
    """The model with its stages, if its source returned any or the model.toml at `path` asks for them.

    Raises ConfigError naming the file and the key.
    """
    call: Any = model.call
    given = isinstance(call, Staged) and len(call.parts) > 1
    asked = config.cuts is not None or config.stages is not None
    if not (asked or given):
        return model
    for index, table in enumerate(config.inputs):
        if table.datatype == "BYTES":
            what = f"{path}: inputs[{index}].datatype"
            raise ConfigError(f"{what}: expected numbers for a model in stages, got BYTES")
    if not asked:
        return replace(model, stages=call.parts)
    from app.models.stages.slicing import sliced  # imports much of torch, which takes half a second

    with naming(f"{path}: {'cuts' if config.cuts else 'stages'}"):
        if given or isinstance(call, CellModel):
            what = "a source that returns Staged" if given else "a recurrent model"
            raise ConfigError(f"expected none for {what}, got {config.cuts or config.stages}")
        return sliced(model, config.stages or 0, config.cuts or ())
