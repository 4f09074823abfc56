"""A scikit-learn estimator or pipeline, `model.joblib`.

joblib files are pickles, which can run any code when opened. So one is opened only if model.toml says `trust = true`.
scikit-learn has no format of its own that is safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.contract import DATATYPES, Array
from app.errors import ConfigError
from app.models.base import as_bytes, as_text
from app.models.description.config import ModelTable
from app.models.description.tables import InputTable
from app.models.sources.imports import optional

_METHODS = ("predict", "predict_proba", "decision_function", "transform", "score_samples", "predict_log_proba")


class Estimator:
    """Takes the inputs, each [rows, ...]; returns an array for each output.

    One input of all features is passed to the estimator as an array, columns of a table as a DataFrame. Threads may
    call it at once: scikit-learn's estimators do not change when they predict.
    """

    def __init__(
        self,
        estimator: Any,
        methods: Sequence[str],
        inputs: Sequence[InputTable],
        datatypes: Sequence[str] | None = None,
    ) -> None:
        """`datatypes`: of the outputs; None: the estimator's own. Raises ConfigError for inputs that do not fit."""
        self.estimator = estimator
        self.methods = tuple(methods)
        self._inputs = list(inputs)
        self._columns = _columns(estimator, inputs)
        self._pandas: Any = optional("pandas") if self._columns else None
        self._dtypes = [DATATYPES[name] for name in datatypes] if datatypes else [None] * len(methods)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = [_values(table, value) for table, value in zip(self._inputs, inputs, strict=True)]
        rows = values[0]
        if self._columns:
            named = {table.name: value for table, value in zip(self._inputs, values, strict=True)}
            rows = self._pandas.DataFrame({name: named[name] for name in self._columns})
        found = {method: getattr(self.estimator, method)(rows) for method in dict.fromkeys(self.methods)}
        return tuple(_as(found[method], dtype) for method, dtype in zip(self.methods, self._dtypes, strict=True))


def _columns(estimator: Any, inputs: Sequence[InputTable]) -> list[str]:
    """The columns of the table, in the order of the estimator's fit; none if it takes an array."""
    fitted = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    if len(inputs) == 1 and (inputs[0].shape or not fitted):
        return []
    for index, table in enumerate(inputs):
        if table.shape:
            what = "expected [], a column of the table, or one input of all features"
            raise ConfigError(f"inputs[{index}].shape: {what}, got {table.shape!r}")
        if fitted and table.name not in fitted:
            known = ", ".join(fitted)
            raise ConfigError(f"inputs[{index}].name: expected a column of its fit ({known}), got {table.name!r}")
    names = [table.name for table in inputs]
    return sorted(names, key=fitted.index) if fitted else names


def _values(table: InputTable, value: Any) -> Array:
    """An input as an array: text as `str`, missing text as NaN."""
    if isinstance(value, torch.Tensor):
        numbers: Array = value.numpy()
        return numbers
    texts = as_text(value)
    if table.missing:
        texts[texts == ""] = np.nan
    return texts


def _as(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """An estimator's result as a dense array, cast to the declared datatype if that is of the same kind."""
    array: Array = value.toarray() if hasattr(value, "toarray") else np.asarray(value)
    if array.dtype.kind in "OU":
        return as_bytes(array)
    fits = dtype is not None and np.can_cast(array.dtype, dtype, "same_kind")
    return np.ascontiguousarray(array, dtype) if fits else array


def open_estimator(path: Path, config: ModelTable) -> Estimator:
    """Unpickles the file, which may run any code, only if model.toml says `trust`. Raises ConfigError."""
    estimator = load_estimator(path, config.trust)
    methods = _methods(estimator, [table.name for table in config.outputs], config.kwargs.get("methods", {}))
    return Estimator(estimator, methods, config.inputs, [table.datatype for table in config.outputs])


def load_estimator(path: Path, trust: bool) -> Any:
    """Unpickle the file, only if `trust`. Raises ConfigError, and what joblib and the pickle raise."""
    if not trust:
        raise ConfigError(
            f"{path}: a joblib file is a pickle, which may run any code as it is opened: set trust = true in "
            "model.toml if you would run its maker's programs, or convert it to ONNX (skl2onnx) and serve model.onnx"
        )
    joblib: Any = optional("joblib", "scikit-learn")
    return joblib.load(path)


def _methods(estimator: Any, outputs: Sequence[str], given: Any) -> list[str]:
    """The method that gives each output: as `given` says, or the one of the output's name; of one output the first
    that the estimator has.
    """
    if not isinstance(given, Mapping) or not all(isinstance(value, str) for value in given.values()):
        raise ConfigError(f'kwargs.methods: expected a table like {{ label = "predict" }}, got {given!r}')
    unknown = [name for name in given if name not in outputs]
    if unknown:
        raise ConfigError(f"kwargs.methods: expected names of outputs ({', '.join(outputs)}), got {unknown[0]!r}")
    has = [method for method in _METHODS if callable(getattr(estimator, method, None))]
    chosen = []
    for name in outputs:
        method = given.get(name) or (name if name in has else has[0] if has and len(outputs) == 1 else "")
        if not method:
            raise ConfigError(
                f"output {name!r}: expected the name of a method ({', '.join(has) or 'it has none of predict'}), or "
                f'the method under kwargs: methods = {{ {name} = "{has[0] if has else "predict"}" }}'
            )
        if not callable(getattr(estimator, method, None)):
            raise ConfigError(
                f"kwargs.methods.{name}: expected a method of {type(estimator).__name__} ({', '.join(has)}), "
                f"got {method!r}"
            )
        chosen.append(method)
    return chosen
