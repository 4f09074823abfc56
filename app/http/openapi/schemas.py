"""JSON schemas of tensors and of the bodies that hold them, in the three protocols. Pure functions of a ModelInfo.

A schema describes rows nested as their shape has it; that all protocols take flat ones too would make every schema a
choice. If a row is too large to read, lengths are given in words: tools would make examples of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.contract import FLOATS, UNBOUNDED, ModelInfo, TensorSpec
from app.http.codecs.base import client_inputs
from app.http.examples import READABLE

Schema = dict[str, Any]

_MOST_LISTED = 100  # categories
#: Bytes of any kind, of which a file is one.
_BASE64: Schema = {
    "type": "object",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "required": ["b64"],
    "additionalProperties": False,
}


def shape_text(spec: TensorSpec) -> str:
    """`FP32 [rows, 4]`."""
    return f"{spec.datatype} [{', '.join(['rows', *spec.axes_shown()])}]"


def value_schema(spec: TensorSpec, *, sent: bool = True) -> Schema:
    """One value of a tensor. `sent`: by a client, so that its range is checked."""
    if sent and spec.missing:
        return {"anyOf": [_known_value(spec, sent=True), {"type": "null"}]}
    return _known_value(spec, sent=sent)


def _known_value(spec: TensorSpec, *, sent: bool) -> Schema:
    if sent and 0 < len(spec.categories) <= _MOST_LISTED:
        return {"enum": [one.decode() if isinstance(one, bytes) else one for one in spec.categories]}
    if spec.datatype == "BOOL":
        return {"type": "boolean"}
    if spec.datatype == "BYTES":
        return {"anyOf": [{"type": "string"}, _BASE64]} if sent else {"type": "string"}
    if spec.datatype in FLOATS:
        return {"type": "number"}
    if not sent:
        return {"type": "integer"}
    limits = np.iinfo(spec.dtype)
    low = int(limits.min) if spec.minimum is None else spec.minimum
    high = int(limits.max) if spec.maximum is None else spec.maximum
    return {"type": "integer", "minimum": low, "maximum": high}


def row_schema(spec: TensorSpec, *, sent: bool) -> Schema:
    """One row: a value, or values nested as its shape. `sent`: by a client, so that no axis is empty."""
    schema = value_schema(spec, sent=sent)
    readable = spec.count <= READABLE
    for axis, bound in reversed(list(zip(spec.axes, spec.bounds, strict=True))):
        schema = {"type": "array", "items": schema}
        if axis:
            schema |= {"minItems": 1} if sent else {}
            schema |= {"maxItems": bound} if bound != UNBOUNDED else {}
        elif readable:
            schema |= {"minItems": bound, "maxItems": bound}
    return {**schema, "description": f"{spec.name}, one row: {spec.datatype} [{', '.join(spec.axes_shown())}]"}


def _rows(schema: Schema, most: int | None = None) -> Schema:
    return {"type": "array", "items": schema, "minItems": 1, **({} if most is None else {"maxItems": most})}


def _object(properties: Mapping[str, Schema], required: Sequence[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
    }


def _v2_tensor(spec: TensorSpec, most: int | None, *, sent: bool) -> Schema:
    lengths = [
        ({"minimum": 1} if sent else {}) | ({"maximum": bound} if bound != UNBOUNDED else {})
        if axis
        else {"const": bound}
        for axis, bound in zip(spec.axes, spec.bounds, strict=True)
    ]
    rows: Schema = {"type": "integer", "minimum": 1, **({} if most is None else {"maximum": most})}
    nested = {"type": "array", "items": row_schema(spec, sent=sent), "description": "Nested, rows first."}
    flat = {"type": "array", "items": value_schema(spec, sent=sent), "description": "Flat, row-major."}
    return _object(
        {
            "name": {"type": "string", "const": spec.name},
            "datatype": {"type": "string", "const": spec.datatype},
            "shape": {
                "type": "array",
                "prefixItems": [rows, *({"type": "integer", **length} for length in lengths)],
                "minItems": 1 + len(lengths),
                "maxItems": 1 + len(lengths),
                "description": f"[{', '.join(['rows', *spec.axes_shown()])}]",
                "examples": [[1, *(bound or 1 for bound in spec.bounds)]],
            },
            "data": {"anyOf": [nested, flat]} if spec.shape else flat,
            "parameters": {"type": "object"},
        },
        ("name", "shape", "datatype"),
    ) | {"title": spec.name}


def _one_of(schemas: Sequence[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}


def v2_request(info: ModelInfo, common: Mapping[str, Schema]) -> Schema:
    """`common`: the properties that are those of every model's requests."""
    inputs = [_v2_tensor(spec, info.batching.max_queue, sent=True) for spec in client_inputs(info)]
    wanted = _object(
        {"name": {"enum": [spec.name for spec in info.outputs]}, "parameters": {"type": "object"}}, ("name",)
    )
    tensors = {"type": "array", "items": _one_of(inputs), "minItems": len(inputs), "maxItems": len(inputs)}
    outputs = {"type": "array", "items": wanted, "description": "All of the model's outputs where absent."}
    return _object({**common, "inputs": tensors, "outputs": outputs}, ("inputs",))


def v2_answer(info: ModelInfo) -> Schema:
    outputs = [_v2_tensor(spec, None, sent=False) for spec in info.outputs]
    return _object(
        {
            "model_name": {"type": "string", "const": info.name},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": _one_of(outputs)},
        },
        ("model_name", "model_version", "outputs"),
    )


def _element(specs: Sequence[TensorSpec], *, sent: bool) -> Schema:
    """A row as V1 has it: the value of the only tensor, or an object by name."""
    named = _object({spec.name: row_schema(spec, sent=sent) for spec in specs})
    return row_schema(specs[0], sent=sent) if len(specs) == 1 else named


def v1_request(info: ModelInfo) -> Schema:
    element = _element(client_inputs(info), sent=True)
    return _object({"instances": _rows(element, info.batching.max_queue)})


def v1_answer(info: ModelInfo, presented: Schema | None = None) -> Schema:
    """`presented`: of a model whose front makes a value of its outputs, that value's schema."""
    return _object({"predictions": _rows(_element(info.outputs, sent=False) if presented is None else presented)})


def friendly_request(info: ModelInfo) -> Schema:
    """One row or a list of them; of several inputs an object of such, or a list of objects, the records of a table."""
    most = info.batching.max_queue
    columns = {spec.name: row_schema(spec, sent=True) for spec in client_inputs(info)}
    if len(columns) == 1:
        row = next(iter(columns.values()))
        return {"anyOf": [row, _rows(row, most)]}
    several = {name: _rows(row, most) for name, row in columns.items()}
    return {"anyOf": [_object(columns), _object(several), _rows(_object(columns), most)]}


def friendly_answer(info: ModelInfo, presented: Schema | None = None) -> Schema:
    """`presented`: the schema of the value that the model itself makes of its outputs; {} where it may be any."""
    if presented == {}:
        return {"description": "What the model makes of its outputs: one value, or a list with one for each row."}
    row = _object({spec.name: _labelled(spec) for spec in info.outputs}) if presented is None else presented
    return {"anyOf": [row, _rows(row)]}


def _labelled(spec: TensorSpec) -> Schema:
    """As `present.py` has it: a vector of scores, one for each label, has the label of the highest beside it."""
    row = row_schema(spec, sent=False)
    if not spec.labels or spec.shape != (len(spec.labels),):
        return row
    return _object({"label": {"enum": list(spec.labels)}, "scores": row})
