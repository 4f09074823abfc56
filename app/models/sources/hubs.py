"""Opens models of other libraries: transformers, torchvision, timm.

Each is an optional dependency, imported when a model needs it. Nothing here loads an unrestricted pickle, or runs code
from a hub.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.contract import ModelInfo
from app.errors import ConfigError
from app.models.sources.imports import PATCHING, optional

ADAPTER = "adapter_config.json"

Given = Mapping[str, torch.Tensor]
Made = Callable[[Any, Given], Any]


class ByName(nn.Module):
    """Calls a transformers model by the `names` of its inputs, with those that it `takes`. `made` makes the outputs
    from its result and all of the inputs, by name.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], made: Made, takes: Container[str] | None = None) -> None:
        super().__init__()
        self.model, self.names, self.made = model, list(names), made
        self._takes = names if takes is None else takes

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = dict(zip(self.names, tensors, strict=True))
        result = self.model(**{name: tensor for name, tensor in given.items() if name in self._takes})
        return self.made(result, given)


def as_declared(model: nn.Module, info: ModelInfo) -> ByName:
    """The model with all inputs of these names; it returns a tuple of the outputs.

    Called, it raises ConfigError if the model gives no output of a declared name.
    """
    names = [spec.name for spec in info.outputs]

    def made(result: Any, given: Given) -> tuple[torch.Tensor, ...]:
        missing = [name for name in names if name not in result]
        if missing:
            raise ConfigError(f"output {missing[0]!r}: not among the model's outputs {list(result)}")
        return tuple(result[name] for name in names)

    return ByName(model, [spec.name for spec in info.inputs], made)


def open_transformers(name: str, folder: Path, kwargs: Mapping[str, Any]) -> nn.Module:
    """`name` is a folder, relative to the model's own, or else the id of a model on the Hugging Face hub.

    `kwargs` may name the class (`auto_class`, AutoModel if not given); the others go to its `from_pretrained`.
    """
    transformers = optional("transformers")
    options = dict(kwargs)
    for refused in ("trust_remote_code", "weights_only"):
        if refused in options:
            raise ConfigError(f"kwargs.{refused}: not accepted; a model with code of its own belongs in model.py")
    class_name = options.pop("auto_class", "AutoModel")
    auto_class = getattr(transformers, str(class_name), None)
    if auto_class is None or not hasattr(auto_class, "from_pretrained"):
        raise ConfigError(f"kwargs.auto_class: expected a model class of transformers, got {class_name!r}")
    return from_pretrained(auto_class, weights_at(name, folder), options)[0]


def weights_at(name: str, folder: Path) -> str:
    """The folder of a `name` beside model.toml or elsewhere, or the name itself, if it may be an id on the hub.

    Raises ConfigError for a folder that is not there, or has an adapter.
    """
    local = folder / name
    if local.is_dir():
        refuse_adapter(local)
        return str(local)
    if not Path(name).is_dir() and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise ConfigError(f"{local}: no such folder")
    return name


def refuse_adapter(folder: Path) -> None:
    """Raises ConfigError for an adapter that transformers would leave out without a word, or cannot open."""
    whole = (folder / "config.json").is_file() and find_spec("peft") is not None  # then transformers applies it
    if (folder / ADAPTER).is_file() and not whole:
        raise ConfigError(
            f"{folder / ADAPTER}: an adapter is not applied: save the whole model, "
            "PEFT's model.merge_and_unload().save_pretrained(FOLDER); remove the file if its weights are merged already"
        )


def from_pretrained(auto_class: Any, place: str, options: Mapping[str, Any]) -> tuple[nn.Module, Mapping[str, Any]]:
    """`auto_class.from_pretrained` and its report of the weights, one call at a time.

    Raises ConfigError for weights of other sizes than config.json says, and for pickles of more than weights. Weights
    are copies: it maps the file, and answers would change, or the process end, while somebody writes a new one over it.

    It replaces methods of transformers' classes while it runs. Two calls at once could leave them replaced, and tied
    weights of later models would be random. Weights are downloaded before, so that other models need not wait.
    """
    if not Path(place).is_dir():
        chosen = {key: options[key] for key in ("revision", "subfolder", "cache_dir", "token") if key in options}
        cached_file(place, "model.safetensors", **chosen)
    # results by name, also of a model whose config.json asks for tuples
    fixed = {"weights_only": True, "trust_remote_code": False, "return_dict": True}
    # else an error that only refers to a report, which nobody sees
    fixed |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        with PATCHING:
            made = auto_class.from_pretrained(place, **{**options, **fixed})
    except pickle.UnpicklingError:  # torch's message is ten lines long and suggests opening it anyway
        wanted = "expected safetensors or a state dict of plain tensors, got a pickle of something else"
        raise ConfigError(f"{wanted}: write it by save_pretrained") from None
    model, report = made if isinstance(made, tuple) else (made, {})
    if not isinstance(model, nn.Module):
        raise ConfigError(f"expected an nn.Module, got {type(model).__name__}")
    for weight in chain(model.parameters(), model.buffers()):
        if weight.is_cpu and type(weight.data) is torch.Tensor:  # not of a class of its own, as of quantization
            weight.data = weight.data.clone()
    for name, found, own in sorted(report.get("mismatched_keys", ())):
        raise ConfigError(f"expected {name} of {list(own)}, as config.json says, got {list(found)} in the weights")
    return model, report


def cached_file(place: str, name: str, **options: Any) -> str | None:
    """The path of a file in a folder or on the hub, downloaded if necessary; None if there is none."""
    hub: Any = optional("transformers.utils.hub")
    kinds = ("gated_repo", "missing_entries", "connection_errors")
    quiet = {f"_raise_exceptions_for_{kind}": False for kind in kinds}
    found: str | None = hub.cached_file(place, name, **quiet, **options)
    return found


def open_torchvision(name: str, kwargs: Mapping[str, Any]) -> Any:
    """`kwargs.weights` ("DEFAULT", "IMAGENET1K_V2", ...) fetches published weights, once; others go to the model."""
    models = optional("torchvision.models")
    options = dict(kwargs)
    wanted = options.pop("weights", None)
    if wanted is None:
        return models.get_model(name, weights=None, **options)
    published = models.get_model_weights(name)
    try:
        entry = published[wanted]
    except KeyError:
        raise ConfigError(
            f"kwargs.weights: expected one of {[item.name for item in published]}, got {wanted!r}"
        ) from None
    options.setdefault("num_classes", len(entry.meta["categories"]))
    model = models.get_model(name, weights=None, **options)
    # torchvision's own builder would unpickle without restriction
    model.load_state_dict(entry.get_state_dict(progress=False, check_hash=True, weights_only=True))
    return model


def open_timm(name: str, kwargs: Mapping[str, Any]) -> Any:
    """`kwargs` go to `timm.create_model` (`pretrained = true` fetches published weights, once)."""
    return optional("timm").create_model(name, **kwargs)
