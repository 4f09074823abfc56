"""What `starling models` and `starling check` do: list what a repository holds, and try each model once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.contract import Model, ModelInfo, ModelSource
from app.errors import ConfigError
from app.models.base import example_inputs, normalise, verify
from app.models.config import model_info, read_config
from app.models.loaders import load, one_line
from app.models.repository import Repository

_ROWS = 2  # more than one, else a model that forgets the batch dimension would pass


@dataclass(frozen=True, slots=True)
class Listed:
    """One version in a repository. `info` is None and `error` says why where its model.toml is wrong."""

    source: ModelSource
    info: ModelInfo | None
    origin: str = ""  # the key `source` of model.toml
    description: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """One version, tried. `error` is empty where it does what it declares."""

    source: ModelSource
    info: ModelInfo | None
    parameters: int = 0  # weights, for an nn.Module
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    results: tuple[Checked, ...]

    @property
    def ok(self) -> bool:
        """True when there was something to try and all of it passed."""
        return bool(self.results) and not any(result.error for result in self.results)


def describe(repository: Repository) -> list[Listed]:
    """All versions by name, read from model.toml alone: nothing is loaded. Raises ConfigError for an unreadable folder
    and for one without a model.
    """
    return [_read(source) for source in _sources(repository)]


def check(place: str | Path | Repository) -> Report:
    """Load every model of a repository, a shipped set or a single model's folder and run one batch of two rows,
    variable axes at their bound. Raises ConfigError only where there is no model; a model's own fault is told in its
    result.
    """
    repository = place if isinstance(place, Repository) else Repository(place)
    return Report(tuple(_try(source) for source in _sources(repository)))


def run_once(model: Model, rows: int = _ROWS) -> None:
    """One forward on ones, checked against the specification. Raises ConfigError, whatever the model raises."""
    info = model.info
    lengths = {axis: bound for spec in info.inputs for axis, bound in zip(spec.axes, spec.bounds, strict=True) if axis}
    arguments = example_inputs(info.inputs, rows, lengths)
    keywords: dict[str, Any] = {"parameters": [{} for _ in range(rows)]} if model.takes_parameters else {}
    try:
        with torch.inference_mode():
            result = model.call(*arguments, **keywords)
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(
            f"model {info.name!r} version {info.version}: a batch of {rows} rows: {one_line(error)}"
        ) from error
    verify(info, normalise(result, info.outputs, info.name), rows, lengths)


def _sources(repository: Repository) -> list[ModelSource]:
    return [source for versions in repository.scan(required=True).values() for source in versions]


def _read(source: ModelSource) -> Listed:
    try:
        config = read_config(source.folder)
        return Listed(source, model_info(config, source), config.source, config.description)
    except ConfigError as error:
        return Listed(source, None, error=str(error))


def _try(source: ModelSource) -> Checked:
    info: ModelInfo | None = None
    try:
        info = model_info(read_config(source.folder), source)
        model = load(source)
        run_once(model)
    except ConfigError as error:
        return Checked(source, info, error=str(error))
    weights = model.call.parameters() if isinstance(model.call, torch.nn.Module) else ()
    return Checked(source, info, sum(weight.numel() for weight in weights))
