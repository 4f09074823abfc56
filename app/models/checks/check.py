"""What `starling models` and `starling check` do: list what a repository holds, and try each model once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_exception

import torch

from app.contract import Model, ModelInfo, ModelSource, SampleRow
from app.errors import ConfigError
from app.models.checks.trial import REPLACES_NONE, Unfit, call_directly, try_model
from app.models.description.config import CheckNames, model_info
from app.models.loading import load, read_declared
from app.models.repository import Repository
from app.user_code import own_trace


@dataclass(frozen=True, slots=True)
class Checked:
    """One version in a repository, read or tried too. `info` is None where its model.toml is wrong; `origin` is the key
    `source` there. `error` says why it would not serve; `warnings` are what serving it would log.

    `untried`: it raises on every made-up row, so no batch of it has run. `trace`: what its own code raised, and where.
    `example`: of a model with a front, a row that clients may send.
    """

    source: ModelSource
    info: ModelInfo | None = None
    origin: str = ""
    parameters: int = 0  # weights, for an nn.Module
    error: str = ""
    warnings: tuple[str, ...] = ()
    untried: bool = False
    trace: str = ""
    example: SampleRow | None = None


@dataclass(frozen=True, slots=True)
class Report:
    results: tuple[Checked, ...]

    @property
    def ok(self) -> bool:
        """True when there was something to try and all of it would serve."""
        return bool(self.results) and not any(result.error for result in self.results)

    @property
    def clean(self) -> bool:
        """True when nothing would be logged of it either."""
        return self.ok and not any(result.warnings for result in self.results)


def describe(repository: Repository, check_names: CheckNames | None = None) -> list[Checked]:
    """All versions by name, read from model.toml alone: nothing is loaded. Raises ConfigError for an unreadable folder
    and for one without a model.
    """
    return [_read(source, check_names) for source in _sources(repository)]


def check(
    place: str | Path | Repository, row_check: str | None = None, check_names: CheckNames | None = None
) -> Report:
    """Load every model of a repository, a shipped set or a single model's folder and try it: batches of 1, 2 and the
    largest size, a row at full length, and whether rows are independent. `row_check` beats model.toml.

    Raises ConfigError only where there is no model; a model's own fault is in its result. A version that raises on
    every made-up row is an error where `starling serve` would refuse it beside an older one, or where no row can fit.
    """
    repository = place if isinstance(place, Repository) else Repository(place)
    works: set[str] = set()  # models of which a version has been tried and serves
    results = []
    for source in _sources(repository):
        results.append(_try(source, row_check, check_names, replaces=source.name in works))
        if not (results[-1].error or results[-1].untried):
            works.add(source.name)
    return Report(tuple(results))


def _sources(repository: Repository) -> list[ModelSource]:
    return [source for versions in repository.scan(required=True).values() for source in versions]


def _read(source: ModelSource, check_names: CheckNames | None) -> Checked:
    try:
        config = read_declared(source.folder)
        return Checked(source, model_info(config, source, None, check_names), config.source)
    except ConfigError as error:
        return Checked(source, error=str(error), trace=_trace(error))


def _try(source: ModelSource, row_check: str | None, check_names: CheckNames | None, *, replaces: bool) -> Checked:
    """`replaces`: an older version of the model works."""
    read = _read(source, check_names)
    if read.error:
        return read
    try:
        model = load(source, {"row_check": row_check}, check_names=check_names)
        warnings, unfit = _tried(model, replaces)
    except ConfigError as error:
        return replace(read, error=str(error), trace=_trace(error))
    weights = model.call.parameters() if isinstance(model.call, torch.nn.Module) else ()
    front = model.front
    return replace(
        read,
        info=read.info if front is None else front.client_info(model.info),
        parameters=sum(weight.numel() for weight in weights),
        warnings=tuple(warnings),
        untried=unfit is not None,
        trace="" if unfit is None else _trace(unfit),
        example=None if front is None else front.example,
    )


def _tried(model: Model, replaces: bool) -> tuple[list[str], Unfit | None]:
    """Warnings, and why nothing could be tried. Raises ConfigError for what would not serve, or could answer nobody."""
    try:
        return try_model(model, call_directly(model)), None
    except Unfit as error:
        if not model.allow_untried and (replaces or error.never_fits):
            raise ConfigError(f"{error}. {REPLACES_NONE}" if replaces else str(error)) from error
        return [f"{error}; it would serve as untried, and replace no version that works"], error


def _trace(error: Exception) -> str:
    found = own_trace(error)
    return "" if found is None else "".join(format_exception(*found))
