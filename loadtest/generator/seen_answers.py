"""Checks answers: all outputs, their shapes, and the same values as the first answer to the same request.

While the load runs, answers are only compared byte for byte, at the cost of a hash. New answers are kept and decoded
afterwards; equal requests have several, because batching changes the last digits of floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from .http import Response
from .payload import DTYPES, Body, Tensor

Array = np.ndarray[Any, Any]
Outputs = dict[str, tuple[str, Array]]  # by name: datatype and values

#: The errors that `decode` raises for a malformed answer.
MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError)
UNCHECKED = -1
_KEEP = 256 * 2**20  # bytes of different answers; further ones are counted as unchecked
_HEADER = b"inference-header-content-length"
#: The largest difference of two values, relative to the tensor's largest: batch sizes change the order of summation.
_TOLERANCE = {"FP16": 2e-2, "BF16": 5e-2, "FP32": 1e-3, "FP64": 1e-6}


class SeenAnswers:
    """All different answers of a session. Call `note` while the load runs, and `judge` afterwards.

    `values`: whether answers to the same request must have the same values.
    """

    def __init__(self, bodies: Sequence[Body], *, values: bool) -> None:
        self._bodies = bodies
        self._values = values
        self._known: list[dict[bytes, int]] = [{} for _ in bodies]  # by body: answer -> its number
        self._seen: list[tuple[int, Response]] = []
        self._kept = 0
        self._first: dict[int, dict[str, Array]] = {}  # by body: the values of its first right answer
        self._faults: list[str] = []  # by number, of those that have been judged

    def note(self, body: int, response: Response) -> int:
        """The number of this answer with status 200, or UNCHECKED if there have been too many different ones."""
        known = self._known[body]
        number = known.get(response.body)
        if number is None:
            if self._kept > _KEEP:
                return UNCHECKED
            self._kept += len(response.body)
            number = known[response.body] = len(self._seen)
            self._seen.append((body, response))
        return number

    def judge(self) -> Sequence[str]:
        """Decode and check new answers. Returns, by number, why each answer is wrong; "" if it is right."""
        for body, response in self._seen[len(self._faults) :]:
            self._faults.append(self._fault(body, response))
        return self._faults

    def _fault(self, number: int, response: Response) -> str:
        body = self._bodies[number]
        try:
            if body.outputs is None:
                outputs, fault = _decode_any(response), ""
            else:
                outputs = decode(response.body, response.header(_HEADER))
                fault = misfit(outputs, body.outputs, body.rows)
        except MALFORMED as exc:
            return f"not {'a V2 answer' if body.outputs is not None else 'JSON'}: {exc!r}"
        return fault or (self._differs(number, outputs) if self._values else "")

    def _differs(self, number: int, outputs: Outputs) -> str:
        first = self._first.setdefault(number, {name: values for name, (_, values) in outputs.items()})
        for name, (datatype, values) in outputs.items():
            if name not in first or not _same(datatype, first[name], values):
                return f"wrong values: {name} differs from the first answer to the same request"
        return ""


def _same(datatype: str, first: Array, values: Array) -> bool:
    if first.shape != values.shape:
        return False
    tolerance = _TOLERANCE.get(datatype)
    if tolerance is None:
        return bool((first == values).all())
    finite = np.abs(first[np.isfinite(first)])
    largest = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(values, first, rtol=tolerance, atol=tolerance * largest, equal_nan=True))


def misfit(outputs: Outputs, wanted: Sequence[Tensor], rows: int) -> str:
    """The fault in names, datatypes or shapes of an answer's outputs; "" if there is none."""
    names = [tensor.name for tensor in wanted]
    if set(outputs) != set(names):
        return f"wrong outputs: expected {', '.join(names)}, got {', '.join(outputs) or 'none'}"
    for tensor in wanted:
        datatype, values = outputs[tensor.name]
        shape = (rows, *tensor.shape) if tensor.batched else tensor.shape
        fits = len(values.shape) == len(shape) and all(
            want in (-1, got) for want, got in zip(shape, values.shape, strict=True)
        )
        if datatype != tensor.datatype or not fits:
            got = f"{datatype} {list(values.shape)}"
            return f"wrong shape: expected {tensor.name} {tensor.datatype} {list(shape)}, got {got}"
    return ""


def decode(answer: bytes, json_size: bytes | str = b"") -> Outputs:
    """Datatype and values of each output, JSON or binary. Raises MALFORMED.

    `json_size`: the value of the header Inference-Header-Content-Length; "" if the answer has none.
    """
    at = split = int(json_size) if json_size else len(answer)
    outputs = {}
    for output in orjson.loads(answer[:split])["outputs"]:
        datatype, shape = output["datatype"], output["shape"]
        count = (output.get("parameters") or {}).get("binary_data_size")
        if count is None:
            values = np.array(output["data"], "O" if datatype == "BYTES" else DTYPES[datatype])
        else:
            if at + count > len(answer):
                raise ValueError(f"{output['name']}: fewer bytes than {count}")
            values = _unpacked(datatype, answer[at : at + count])
            at += count
        if values.size != math.prod(shape):
            raise ValueError(f"{output['name']}: {values.size} values for the shape {list(shape)}")
        outputs[output["name"]] = (datatype, values.reshape(shape))
    return outputs


def _decode_any(response: Response) -> Outputs:
    """An answer of the friendly route as two outputs: its numbers in order, and the JSON with 0 in their place."""
    numbers: list[float] = []

    def without_numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_numbers(item) for name, item in value.items()}
        if isinstance(value, list):
            return [without_numbers(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers.append(value)
            return 0
        return value

    rest = orjson.dumps(without_numbers(orjson.loads(response.body)))
    return {"its numbers": ("FP32", np.array(numbers)), "its text": ("BYTES", np.array([rest], object))}


def _unpacked(datatype: str, raw: bytes) -> Array:
    if datatype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    if datatype != "BYTES":
        return np.frombuffer(raw, DTYPES[datatype])
    items, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        items.append(raw[at + 4 : end])
        at = end
    return np.array(items, object)
