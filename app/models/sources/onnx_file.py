"""The inputs and outputs that an ONNX file declares, read from the file alone.

ONNX is protocol buffers. The few fields wanted here stand among weights of any size, which are skipped: reading them
needs no library and takes no memory, so a repository can be listed where onnxruntime is not installed.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import ConfigError
from app.models.description.tables import is_fixed

_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: TensorProto.DataType -> V2 datatype. What is not here cannot be served: bfloat16 has no numpy type that onnxruntime
#: takes, the others have no V2 datatype.
_DATATYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64",
}  # fmt: skip

# Numbers of fields, from onnx.proto.
_GRAPH = 7
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12
_TENSOR_NAME = 8
_NAME, _TYPE = 1, 2
_TENSOR_TYPE, _ELEM_TYPE, _SHAPE = 1, 1, 2
_DIM, _DIM_VALUE, _DIM_PARAM = 1, 1, 2


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output. `datatype` is "" for what is no tensor of a type that can be served.

    `shape` has the batch in front: a length, a symbol, or None where the graph says nothing; None for an unknown rank.
    """

    name: str
    datatype: str
    shape: tuple[int | str | None, ...] | None

    def told(self) -> str:
        """The shape for people: ["batch", 3, "?"]."""
        axes = ["?" if axis is None else str(axis) for axis in self.shape or ()]
        return f"[{', '.join(axes)}]"

    def served(self) -> str:
        """What its type is, or what to do about one that cannot be served."""
        if self.datatype:
            return f"the graph has {self.datatype}"
        return (
            "expected a tensor of a V2 datatype; bfloat16 is served as FP32, and scikit-learn's maps as tensors "
            '(options={"zipmap": False})'
        )


@dataclass(frozen=True, slots=True)
class Interface:
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def read_interface(path: Path) -> Interface:
    """What goes in and out, in the graph's order; inputs with a value of their own are left out.

    Raises ConfigError naming the file when it cannot be read or is no ONNX model.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _interface(data)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, ValueError, IndexError) as error:  # empty, cut off, or another format
        raise ConfigError(f"{path}: expected an ONNX model: {error}") from None
    if not found.inputs or not found.outputs:
        raise ConfigError(f"{path}: expected an ONNX model with inputs and outputs, found none")
    return found


def _interface(data: mmap.mmap) -> Interface:
    inputs: list[Value] = []
    outputs: list[Value] = []
    given: set[str] = set()
    for number, begin, end in _fields(data, 0, len(data)):
        if number != _GRAPH:
            continue
        for part, first, last in _fields(data, begin, end):
            if part == _INPUT:
                inputs.append(_value(data, first, last))
            elif part == _OUTPUT:
                outputs.append(_value(data, first, last))
            elif part == _INITIALIZER:
                given.update(_text(data, *at) for n, *at in _fields(data, first, last) if n == _TENSOR_NAME)
    return Interface(tuple(value for value in inputs if value.name not in given), tuple(outputs))


def _value(data: mmap.mmap, begin: int, end: int) -> Value:
    name, datatype = "", ""
    shape: tuple[int | str | None, ...] | None = None
    for number, first, last in _fields(data, begin, end):
        if number == _NAME:
            name = _text(data, first, last)
        elif number == _TYPE:
            for kind, *tensor in _fields(data, first, last):
                if kind == _TENSOR_TYPE:
                    datatype, shape = _tensor_type(data, *tensor)
    return Value(name, datatype, shape)


def _tensor_type(data: mmap.mmap, begin: int, end: int) -> tuple[str, tuple[int | str | None, ...] | None]:
    datatype, shape = "", None
    for number, first, last in _fields(data, begin, end):
        if number == _ELEM_TYPE:
            datatype = _DATATYPES.get(first, "")
        elif number == _SHAPE:
            shape = tuple(_axis(data, *dim) for n, *dim in _fields(data, first, last) if n == _DIM)
    return datatype, shape


def _axis(data: mmap.mmap, begin: int, end: int) -> int | str | None:
    for number, first, last in _fields(data, begin, end):
        if number == _DIM_VALUE:
            return first if first > 0 else None
        if number == _DIM_PARAM:
            return _text(data, first, last) or None
    return None


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field of a message: its number, and where its bytes begin and end; for a number its value, twice."""
    at = begin
    while at < end:
        key, at = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at, end)
            yield number, value, value
            continue
        if kind == 2:
            size, at = _varint(data, at, end)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"no field of a model at byte {at}")
        if at + size > end:
            raise ValueError(f"cut off at byte {end}")
        yield number, at, at + size
        at += size


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"no number at byte {at}")


def _text(data: mmap.mmap, begin: int, end: int) -> str:
    return bytes(data[begin:end]).decode()


# what model.toml leaves out


def declared_inputs(graph: Interface, path: Path) -> list[dict[str, Any]]:
    """The graph's inputs as tables of model.toml. Raises ConfigError for one that is no tensor."""
    return [_table(value, path, "input", None) for value in graph.inputs]


def declared_outputs(graph: Interface, path: Path, inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """The same of the outputs. `inputs`: tables, whose names of axes an output may have."""
    shapes = [table.get("shape") for table in inputs if isinstance(table, Mapping)]
    names = {axis for shape in shapes if isinstance(shape, list) for axis in shape if isinstance(axis, str)}
    return [_table(value, path, "output", names) for value in graph.outputs]


def _table(value: Value, path: Path, kind: str, names: set[str] | None) -> dict[str, Any]:
    if not value.datatype or not value.shape:
        what = "its shape, which the graph has not" if value.datatype else value.served()
        raise ConfigError(f"{path}: {kind} {value.name!r}: {what}; or declare the {kind}s in model.toml")
    shape: list[int | str] = []
    for axis in value.shape[1:]:
        named = isinstance(axis, str) and bool(_AXIS_NAME.fullmatch(axis)) and (names is None or axis in names)
        shape.append(axis if axis is not None and (named or is_fixed(axis)) else -1)
    return {"name": value.name, "datatype": value.datatype, "shape": shape}
