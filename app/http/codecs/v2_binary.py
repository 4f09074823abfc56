"""V2's binary tensors: little-endian bytes after the JSON, and raw requests, which have such bytes alone.

If possible decoding returns views of the body, so that the bytes are copied once, into the slots.
"""

from __future__ import annotations

from math import prod

import numpy as np

from app.contract import Array, ModelInfo, TensorSpec
from app.errors import BadRequest
from app.http.codecs.base import DecodedCall
from app.values.tensors import check_shape


def from_bytes(raw: memoryview, spec: TensorSpec, shape: tuple[int, ...], where: str) -> Array | memoryview:
    """Check a binary tensor. Returns its bytes unchanged, or an object array for BYTES. Raises BadRequest."""
    if spec.datatype == "BYTES":
        return _split_bytes(raw, shape, where)
    expected = prod(shape) * spec.dtype.itemsize
    if len(raw) != expected:
        raise BadRequest(f"{where}: expected {expected} bytes for shape {list(shape)} {spec.datatype}, got {len(raw)}")
    if spec.datatype == "BOOL":
        bits = np.frombuffer(raw, np.uint8)
        if bits.size and bits.max() > 1:
            raise BadRequest(f"{where}: a BOOL byte is neither 0 nor 1")
    return raw


def _split_bytes(raw: memoryview, shape: tuple[int, ...], where: str) -> Array:
    """Split BYTES elements. Each is a little-endian uint32 length, followed by that many bytes."""
    count = prod(shape)
    if 4 * count > len(raw):
        raise BadRequest(f"{where}: expected {count} BYTES elements, got {len(raw)} bytes in all")
    values = np.empty(count, object)
    offset = 0
    for index in range(count):
        end = offset + 4
        size = int.from_bytes(raw[offset:end], "little")
        if end > len(raw) or end + size > len(raw):
            raise BadRequest(f"{where}: BYTES element {index} reaches beyond the tensor's {len(raw)} bytes")
        values[index] = bytes(raw[end : end + size])
        offset = end + size
    if offset != len(raw):
        raise BadRequest(f"{where}: {len(raw) - offset} bytes are left over after {count} BYTES elements")
    return values.reshape(shape)


def decode_raw(body: bytes, info: ModelInfo) -> DecodedCall:
    """Decode a raw request: the bytes of the only input. Their number gives the rows, or a variable axis' length."""
    inputs = info.client_inputs
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise BadRequest(f"Inference-Header-Content-Length: a raw request needs a model of one input, not {names}")
    spec = inputs[0]
    every = [(index, True) for index in range(len(info.outputs))]
    if spec.datatype == "BYTES":
        if not {1, -1}.issuperset(spec.shape):
            raise BadRequest("Inference-Header-Content-Length: a raw BYTES request is one element a row")
        element = np.array(body, object).reshape(1, *(1 for _ in spec.shape))
        return DecodedCall(1, [element], {axis: 1 for axis in spec.axes if axis}, outputs=every)
    if sum(map(bool, spec.axes)) > 1:
        raise BadRequest("Inference-Header-Content-Length: a raw request needs at most one variable axis")
    unit = prod(spec.row_shape(dict.fromkeys(spec.axes, 1))) * spec.dtype.itemsize
    count, rest = divmod(len(body), unit)
    if rest or not count:
        raise BadRequest(f"body ({spec.name}): expected a multiple of {unit} bytes, got {len(body)}")
    shape = (count if spec.fixed else 1, *spec.row_shape(dict.fromkeys(spec.axes, count)))
    where = f"body ({spec.name})"
    lengths: dict[str, int] = {}
    checked = check_shape(spec, shape, where, lengths)
    return DecodedCall(checked[0], [from_bytes(memoryview(body), spec, checked, where)], lengths, outputs=every)


def join_bytes(values: Array) -> bytes:
    """Join BYTES elements: for each a little-endian uint32 length, followed by its bytes."""
    parts: list[bytes] = []
    for value in values.ravel():
        raw = value if isinstance(value, bytes) else str(value).encode()
        parts += (len(raw).to_bytes(4, "little"), raw)
    return b"".join(parts)
