"""Bodies that work when they are sent: of the row that a model was tried with before it served."""

from __future__ import annotations

from typing import Any

import orjson

from app.api.codecs.base import client_inputs
from app.api.codecs.present import json_rows
from app.api.docs.schemas import READABLE, in_json
from app.contract import Served
from app.errors import OutputNotJson


def example_values(served: Served, most: int = READABLE) -> dict[str, Any] | None:
    """One row, as JSON values by input name.

    None where JSON has no room for it: a model that took no row that was made up, binary inputs, more than `most`
    values, NaN.
    """
    row = served.example
    if row is None or not in_json(served.info) or sum(array.size for array in row.arrays) > most:
        return None
    try:
        named = {
            spec.name: json_rows(spec, array[None])
            for spec, array in zip(client_inputs(served.info), row.arrays, strict=True)
        }
    except OutputNotJson:
        return None
    # Through JSON, because it has short texts for floats: 0.1 as FP32 is a long number in Python.
    columns = orjson.loads(orjson.dumps(named, option=orjson.OPT_SERIALIZE_NUMPY))
    return {name: column[0] for name, column in columns.items()}


def v2_example(served: Served, values: dict[str, Any], rows: int = 1) -> dict[str, Any]:
    """A V2 body of so many rows, all alike."""
    row = served.example
    assert row is not None  # there are values
    inputs = [
        {
            "name": spec.name,
            "shape": [rows, *array.shape],
            "datatype": spec.datatype,
            "data": [values[spec.name]] * rows,
        }
        for spec, array in zip(client_inputs(served.info), row.arrays, strict=True)
    ]
    parameters = {"parameters": dict(row.parameters)} if row.parameters else {}
    return {"id": "1", **parameters, "inputs": inputs}


def v1_example(values: dict[str, Any], rows: int = 1) -> dict[str, Any]:
    return {"instances": [_element(values)] * rows}


def friendly_example(values: dict[str, Any], rows: int = 0) -> Any:
    """One row as it is, or a list of `rows`; of several inputs an object of such."""
    if rows:
        values = {name: [value] * rows for name, value in values.items()}
    return _element(values)


def _element(values: dict[str, Any]) -> Any:
    return next(iter(values.values())) if len(values) == 1 else values
