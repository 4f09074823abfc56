"""What `starling models` and `starling check` do: list what a repository holds, and try each model once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_exception

import torch

from app.contract import Model, ModelInfo, ModelSource, SampleRow
from app.engine_setup import ANY_SIZE
from app.errors import ConfigError
from app.models.base import one_line, with_place
from app.models.checks.calling import call_directly, on_thread
from app.models.checks.trial import (
    REPLACES_NONE,
    NeverFits,
    Unfit,
    check_independence,
    fit_row,
    network_warning,
    try_full_length,
)
from app.models.description.config import model_info
from app.models.loading import load, read_declared
from app.models.repository import Repository
from app.scheduler.policies import policy_class
from app.scheduler.types import DeviceSpec, WorkerSpec
from app.user_code import own_trace


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one version. `info` is None if its model.toml is wrong; `origin` is the key `source` there.

    `error`: why it would not serve; `warnings`: what serving it would log. `untried`: it raises on every made-up row,
    so no batch has run. `trace`: the traceback of its own code. `example`: a valid request row of a model with a front.
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


def describe(repository: Repository) -> list[Checked]:
    """All versions by name, read from model.toml alone: nothing is loaded. Raises ConfigError for an unreadable folder
    and for one without a model.
    """
    return [_read(source) for source in _sources(repository)]


def check(place: str | Path | Repository, row_check: str | None = None) -> list[Checked]:
    """Load every model of a repository, a shipped set or a single model's folder and try it: batches of 1, 2 and the
    largest size, a row at full length, and whether rows are independent. `row_check` beats model.toml.

    Raises ConfigError only if there is no model; errors of a model are in its result. A version that raises on every
    made-up row is an error if `starling serve` would refuse it beside an older one, or if no row can fit.
    """
    repository = place if isinstance(place, Repository) else Repository(place)
    works: set[str] = set()  # models with a version that was tried and serves
    results: list[Checked] = []
    for source in _sources(repository):
        results.append(_try(source, row_check, replaces=source.name in works))
        if not (results[-1].error or results[-1].untried):
            works.add(source.name)
    return results


def try_model(model: Model) -> list[str]:
    """Try sizes, the full length, and the row check. Returns warnings. Raises ConfigError and Unfit."""
    run = call_directly(model)
    row = fit_row(model, run)
    warnings = [
        try_full_length(model, row, run),
        check_independence(model, run),
        network_warning(model),
        _policy_warning(model.info.batching.policy),
    ]
    return [warning for warning in warnings if warning]


def _policy_warning(policy: str) -> str | None:
    """Why a server with one worker of any size, as it has without flags, refuses the policy; None if it does not."""
    try:
        policy_class(policy)().check(DeviceSpec((WorkerSpec(ANY_SIZE),)), {})
    except ValueError as error:
        return f"{error}; `starling serve --policy {policy}` has such workers"
    return None


def _sources(repository: Repository) -> list[ModelSource]:
    return [source for versions in repository.scan(required=True).values() for source in versions]


def _read(source: ModelSource) -> Checked:
    if source.error:
        return Checked(source, error=source.error)
    try:
        config = read_declared(source.folder)
        return Checked(source, model_info(config, source), config.source)
    except ConfigError as error:
        return Checked(source, error=str(error), trace=_trace(error))


def _try(source: ModelSource, row_check: str | None, *, replaces: bool) -> Checked:
    """`replaces`: an older version of the model works."""
    read = _read(source)
    if read.error:
        return read
    try:
        # as the server does: it is built on one thread and called on another, neither of them the main one
        model = on_thread("model-load", load, source, {"row_check": row_check})
        warnings, unfit = on_thread("worker-0", _tried, model, replaces)
        weights = list(model.call.parameters()) if isinstance(model.call, torch.nn.Module) else []
    except ConfigError as error:
        return replace(read, error=str(error), trace=_trace(error))
    except Exception as error:  # a user's code may raise anything, wherever it is looked at; others are still tried
        return replace(read, error=with_place(one_line(error), error), trace=_trace(error))
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
    """Warnings, and why nothing could be tried. Raises ConfigError if the model would not serve, or no row can fit."""
    try:
        return try_model(model), None
    except Unfit as error:
        if not model.checks.allow_untried and (replaces or isinstance(error, NeverFits)):
            raise ConfigError(f"{error}. {REPLACES_NONE}" if replaces else str(error)) from error
        return [f"{error}; it would serve as untried, and replace no version that works"], error


def _trace(error: Exception) -> str:
    found = own_trace(error)
    return "" if found is None else "".join(format_exception(*found))
