"""Boosted trees in files of XGBoost (`model.ubj`, `model.json`) and LightGBM (`model.txt`), which are no pickles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.contract import DATATYPES, Array
from app.errors import ConfigError
from app.models.base import one_line
from app.models.description.config import ModelTable
from app.models.sources.imports import optional

XGBOOST, LIGHTGBM = (".ubj", ".json"), ".txt"
_LONGEST = 200  # characters of a library's message
TREE_FILES = (*XGBOOST, LIGHTGBM)


class Trees:
    """Takes one input of all features, or a column for each; returns the prediction. Threads may call it at once."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the library is missing or refuses the file."""
        self._booster = _booster(path)
        self._is_xgboost = path.suffix in XGBOOST
        #: XGBoost: only the trees up to the best one, if fitting stopped early. LightGBM's files hold no others.
        best = self._booster.attr("best_iteration") if self._is_xgboost else None
        self._rounds = (0, 0 if best is None else int(best) + 1)
        self.threads = 1
        self.use_threads(torch.get_num_threads())
        #: The datatype of features in the library; files do not say.
        self.datatype = "FP32" if self._is_xgboost else "FP64"
        self.dtype = DATATYPES["FP32"]
        self._order: list[int] | None = None  # places of the features among the inputs

    @property
    def features(self) -> list[str]:
        """The names of the features; none if the trees were fitted to an array."""
        if self._is_xgboost:
            return [str(name) for name in self._booster.feature_names or ()]
        names = [str(name) for name in self._booster.feature_name()]
        return [] if names == [f"Column_{place}" for place in range(len(names))] else names

    @property
    def count(self) -> int:
        return int(self._booster.num_features() if self._is_xgboost else self._booster.num_feature())

    def take_columns(self, names: Sequence[str]) -> None:
        """Set the columns of calls. Raises ConfigError unless they are the features."""
        if sorted(names) != sorted(self.features):
            known = ", ".join(self.features) or f"one input of shape [{self.count}]"
            raise ConfigError(f"inputs: expected the features that it was fitted to ({known}), got {', '.join(names)}")
        self._order = [names.index(name) for name in self.features]

    def use_threads(self, threads: int) -> None:
        """Compute with as many threads as the worker has."""
        self.threads = threads
        if self._is_xgboost:
            self._booster.set_param({"nthread": threads})

    def __call__(self, *inputs: Any) -> Array:
        values = [value.numpy() for value in inputs]
        rows = values[0] if self._order is None else np.column_stack([values[place] for place in self._order])
        if self._is_xgboost:
            found = self._booster.inplace_predict(rows, validate_features=False, iteration_range=self._rounds)
        else:
            found = self._booster.predict(rows, num_threads=self.threads)
        return np.ascontiguousarray(found, self.dtype)


def _booster(path: Path) -> Any:
    library: Any = optional("xgboost" if path.suffix in XGBOOST else "lightgbm")
    try:
        if path.suffix == LIGHTGBM:
            return library.Booster(model_file=str(path))
        booster = library.Booster()
        booster.load_model(str(path))
    except Exception as error:  # each library has errors of its own
        raise ConfigError(f"{path}: {library.__name__} does not read it: {one_line(error)[:_LONGEST]}") from None
    return booster


def open_trees(path: Path, config: ModelTable) -> Trees:
    """Open the trees. Raises ConfigError for inputs and outputs that do not fit."""
    if len(config.outputs) != 1:
        raise ConfigError(f"outputs: expected one, what the trees predict, got {len(config.outputs)}")
    trees = Trees(path)
    trees.dtype = DATATYPES[config.outputs[0].datatype]
    if not all(table.shape for table in config.inputs):
        trees.take_columns([table.name for table in config.inputs])
    return trees
