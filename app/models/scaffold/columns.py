"""Finds the columns that a fitted scikit-learn estimator takes, as inputs of model.toml.

The estimator has their names, and its encoders their categories. Other columns are assumed to be numbers. Whether a
column may have missing values is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from app.contract import SampleRow
from app.models.checks.samples import stack
from app.models.scaffold.guess import InputTables, request_row, specs_of

_Known = dict[str, dict[str, Any]]  # by column: its datatype, unless FP64, and its categories


def estimator_inputs(estimator: Any) -> InputTables:
    """The columns by name if it was fitted with names; else one input of all features, or a text."""
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    if names:
        known: _Known = {}
        used = _look(estimator, names, known)
        return [{"name": one, "datatype": "FP64", "shape": [], **known.get(one, {})} for one in names if one in used]
    features = getattr(estimator, "n_features_in_", None)
    if features is None:
        return [{"name": "text", "datatype": "BYTES", "shape": []}]
    return [{"name": "x", "datatype": "FP32", "shape": [int(features)]}]


def with_missing(tables: InputTables, call: Callable[..., dict[str, Any]]) -> InputTables:
    """The tables, with `missing` for each input for which `call` accepts NaN or an empty text."""
    return [
        {**table, "missing": True} if _may_miss(tables, place, call) else table for place, table in enumerate(tables)
    ]


def _may_miss(tables: InputTables, place: int, call: Callable[..., dict[str, Any]]) -> bool:
    specs = specs_of(tables)
    row = request_row(specs)
    text = specs[place].datatype == "BYTES"
    if specs[place].datatype == "BOOL" or (text and len(specs) == 1):
        return False
    arrays = [array.copy() for array in row.arrays]
    arrays[place][...] = b"" if text else np.nan
    try:
        with torch.inference_mode():
            results = call(*stack(specs, [SampleRow(tuple(arrays), row.lengths)]))
    except Exception:  # scikit-learn has an error of its own for each step
        return False
    return not any(value.dtype.kind == "f" and np.isnan(value).any() for value in results.values())


def _look(step: Any, names: Sequence[str], known: _Known) -> set[str]:
    """Add to `known` what a fitted step knows of its columns `names`. Returns the columns that it uses."""
    if isinstance(step, str):
        return set() if step == "drop" else set(names)
    if hasattr(step, "transformers_"):  # a ColumnTransformer
        return {name for _, part, columns in step.transformers_ for name in _look(part, _chosen(names, columns), known)}
    if hasattr(step, "transformer_list"):  # a FeatureUnion
        return {name for _, part in step.transformer_list for name in _look(part, names, known)}
    if hasattr(step, "steps"):  # a Pipeline
        used = _look(step.steps[0][1], names, known)
        for (_, before), (_, part) in zip(step.steps, step.steps[1:], strict=False):
            if not _keeps_columns(before, names):
                break
            _look(part, names, known)
        return used
    categories = getattr(step, "categories_", ())
    if len(categories) == len(names):
        listed = getattr(step, "handle_unknown", "ignore") == "error"
        known.update({name: _column_of(values, listed) for name, values in zip(names, categories, strict=True)})
    elif hasattr(step, "build_analyzer"):  # a vectorizer of texts
        known.update({name: {"datatype": "BYTES"} for name in names})
    elif hasattr(step, "statistics_"):  # an imputer
        known.update(
            {
                name: {"datatype": "BYTES"}
                for name, value in zip(names, step.statistics_, strict=True)
                if isinstance(value, str)
            }
        )
    return set(names)


def _keeps_columns(step: Any, names: Sequence[str]) -> bool:
    """Whether the step behind this one gets the same columns: only an imputer, or `passthrough`, keeps them."""
    if isinstance(step, str):
        return True
    return len(getattr(step, "statistics_", ())) == len(names) and getattr(step, "indicator_", None) is None


def _chosen(names: Sequence[str], columns: Any) -> list[str]:
    """The columns of one part of a ColumnTransformer: given by name, place, slice or mask."""
    if isinstance(columns, str):
        return [columns]
    if isinstance(columns, slice):  # one from a name to a name includes it
        bounds = ((columns.start, 0), (columns.stop, 1))
        return list(names[slice(*(names.index(end) + more if isinstance(end, str) else end for end, more in bounds))])
    chosen = np.atleast_1d(np.asarray(columns))
    if chosen.dtype.kind in "OUT":
        return [str(name) for name in chosen]
    return [names[place] for place in np.arange(len(names))[chosen]] if chosen.size else []


def _column_of(categories: Any, listed: bool) -> dict[str, Any]:
    """The keys of a column that an encoder knows. `listed`: it refuses unknown categories."""
    values = [value.item() if isinstance(value, np.generic) else value for value in categories]
    there = [value for value in values if value is not None and value == value]  # NaN equals nothing
    if there and all(isinstance(value, bool) for value in there):
        return {"datatype": "BOOL"}
    found: dict[str, Any] = {"datatype": "BYTES"} if any(isinstance(value, str) for value in there) else {}
    return {**found, "categories": there} if listed else found
