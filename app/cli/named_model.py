"""Finds the model that a command is about, by its name or by its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to load: only when a command runs
    from app.contract import Model, ModelSource


def find_model(name: str, models: str, extra: list[str]) -> ModelSource:
    """The highest version of a model: one of the repository `models` or of `extra`, else the one in the folder `name`.

    Raises ConfigError where there is none, and for a folder with several models.
    """
    from app.models.repository import Repository

    repository = Repository(models, extra)
    if sources := repository.sources(name):
        return sources[-1]
    folder = Path(name)
    if not folder.is_dir():
        raise ConfigError(f"model {name!r} is not known; models: {', '.join(repository.names()) or 'none'}")
    inside = Repository(folder).scan()
    if len(inside) != 1:
        held = f"of {', '.join(inside)}; name one, with --models {name}" if inside else "without a model"
        raise ConfigError(f"model: expected a name or the folder of one model, got {name!r}, a folder {held}")
    ((*_, highest),) = inside.values()
    return highest


def load_model(name: str, models: str, extra: list[str], max_batch: int) -> Model:
    """The model, by the same code as the server's."""
    from app.models.loading import load
    from app.scheduler.policies import check_names

    return load(find_model(name, models, extra), {"max_batch": max_batch or None}, check_names=check_names)
