"""ONNX graphs, which onnxruntime computes on the CPU. model.toml need not repeat what the graph declares."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from app.contract import Array
from app.errors import ConfigError
from app.models.base import one_line
from app.models.description.config import FILE_NAME, ModelTable, parse_config
from app.models.description.config_tables import AXIS_NAME, TensorTable, is_fixed
from app.models.model_files import file_at
from app.models.sources.imports import optional

#: onnxruntime's name of a type -> V2 datatype. What is not here cannot be served: bfloat16 has no numpy type that
#: onnxruntime takes, the others have no V2 datatype.
_DATATYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(float16)": "FP16",
    "tensor(string)": "BYTES",
    **{f"tensor({kind}{bits})": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "tensor(bool)": "BOOL",
}
_FATAL = 4  # level of onnxruntime's log: its errors are also exceptions, and its lines have colour codes
#: In the bytes of a graph, a protobuf: the key of an entry, which a tensor has in its field 13, as metadata have theirs
#: in others. Its length is before it; its value follows, with its length.
_LOCATION = re.compile(rb"j(?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])\n\x08location\x12")
_MORE = 0x80  # of a length's first byte: there is a second

Tables = list[dict[str, Any]]


class OnnxModel:
    """Takes one tensor per input, in the order of `inputs`; returns arrays in the order of `outputs`.

    Threads may call it at once. It is no nn.Module, so it stays on the CPU.
    """

    def __init__(self, path: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int | None = None) -> None:
        """`threads` overrides those of the worker. Raises ConfigError if onnxruntime is missing or refuses the file."""
        self._path = path
        self._inputs = tuple(inputs)
        self._outputs = list(outputs)
        self._fixed = threads is not None
        self.threads = threads or torch.get_num_threads()
        self.session = open_session(path, self.threads)

    def use_threads(self, threads: int) -> None:
        """Compute with as many threads as the worker has, unless model.toml says how many."""
        if not self._fixed and threads != self.threads:
            self.threads = threads
            self.session = open_session(self._path, threads)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        feed = {name: _as_fed(value) for name, value in zip(self._inputs, inputs, strict=True)}
        return tuple(self.session.run(self._outputs, feed))


def open_session(path: Path, threads: int) -> Any:
    """An onnxruntime.InferenceSession. Raises ConfigError naming the file, or what to install."""
    onnxruntime: Any = optional("onnxruntime")
    file_at(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # Threads that spin between two batches would take the cores of the event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Copied: onnxruntime would map them, and who writes over such a file changes answers, or ends the server by SIGBUS.
    beside = external_files(path)
    weights = [file_at(path.parent / name).read_bytes() for name in beside]
    options.add_external_initializers_from_files_in_memory(beside, weights, list(map(len, weights)))
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class for each error code
        raise ConfigError(f"{path}: expected an ONNX model that onnxruntime takes: {one_line(error)}") from None


def _as_fed(value: Any) -> Array:
    """An input as onnxruntime takes it, text as `str`. Invalid UTF-8 becomes U+FFFD."""
    if isinstance(value, torch.Tensor):
        return np.ascontiguousarray(value.numpy())
    texts = [one.decode("utf-8", "replace") for one in value.reshape(-1)]
    return np.array(texts, object).reshape(value.shape)


# the files beside it that hold its weights: the graph names them, and no library is needed to read it


def external_files(path: Path) -> list[str]:
    """The files that hold the graph's weights, relative to its folder, each once.

    Raises ConfigError naming the graph if one is outside of the folder, and if the graph cannot be read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            ends = [key.end() for key in _LOCATION.finditer(data)]
            found = dict.fromkeys(_location(data, end).decode() for end in ends)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{path}: expected an ONNX graph: {error}") from None
    for name in found:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or not place.name:
            raise ConfigError(f"{path}: expected its weights in files beside it, got {name!r}")
    return list(found)


def _location(data: mmap.mmap, at: int) -> bytes:
    length, begin = data[at], at + 1
    if length >= _MORE:
        length, begin = length - _MORE + (data[begin] << 7), begin + 1
    return data[begin : begin + length]


# what model.toml leaves out


def with_graph(config: ModelTable, folder: Path) -> ModelTable:
    """model.toml with the graph's inputs and outputs where it declares none. Raises ConfigError naming the file."""
    if config.inputs and config.outputs:
        return config
    table = config.model_dump(exclude_unset=True)
    inputs, outputs = graph_tables(folder / config.source, table.get("inputs"), table.get("outputs"))
    return parse_config({**table, "inputs": inputs, "outputs": outputs}, folder / FILE_NAME)


def graph_tables(path: Path, inputs: Tables | None = None, outputs: Tables | None = None) -> tuple[Tables, Tables]:
    """`inputs` and `outputs` as tables of model.toml, the graph's own in place of those not given."""
    session = open_session(path, 1)
    inputs = inputs or [_table(path, "input", node, None) for node in session.get_inputs()]
    axes = {axis for table in inputs for axis in table["shape"] if isinstance(axis, str)}
    return inputs, outputs or [_table(path, "output", node, axes) for node in session.get_outputs()]


def _table(path: Path, kind: str, node: Any, names: set[str] | None) -> dict[str, Any]:
    """An input or output as a table. `names`: allowed names of axes; None: any. Raises ConfigError."""
    datatype = _DATATYPES.get(node.type, "")
    if not datatype or not node.shape:
        what = "its shape, which the graph does not have" if datatype else _not_served(node)
        raise ConfigError(f"{path}: {kind} {node.name!r}: {what}; or declare the {kind}s in model.toml")
    shape: list[int | str] = []
    for axis in node.shape[1:]:
        named = isinstance(axis, str) and AXIS_NAME.fullmatch(axis) and (names is None or axis in names)
        shape.append(axis if named or is_fixed(axis) else -1)
    return {"name": node.name, "datatype": datatype, "shape": shape}


def _not_served(node: Any) -> str:
    return (
        f"expected a tensor of a V2 datatype, got {node.type}; bfloat16 is served as FP32, and scikit-learn's maps as "
        'tensors (options={"zipmap": False})'
    )


# what model.toml declares


def open_onnx(path: Path, config: ModelTable) -> OnnxModel:
    """Open the graph and compare it with model.toml. Raises ConfigError naming the file and the tensor."""
    names, outputs = ([table.name for table in tables] for tables in (config.inputs, config.outputs))
    model = OnnxModel(path, names, outputs, _threads(config.kwargs))
    _check(path, "input", config.inputs, model.session.get_inputs())
    _check(path, "output", config.outputs, model.session.get_outputs())
    for node in model.session.get_inputs():
        if node.name not in names:
            what = "expected it among the inputs of model.toml, which has none"
            raise ConfigError(f"{path}: input {node.name!r}: {what}")
        _check_batch(path, node, config.batching.max_batch)
    return model


def _threads(kwargs: Mapping[str, Any]) -> int | None:
    threads: int | None = kwargs.get("threads")
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise ConfigError(f"kwargs.threads: expected a number of threads, at least 1, got {threads!r}")
    return threads


def _check(path: Path, kind: str, tables: Sequence[TensorTable], nodes: Sequence[Any]) -> None:
    """Raise ConfigError unless each tensor of model.toml is in the graph, with that type and shape."""
    for table in tables:
        where = f"{path}: {kind} {table.name!r}"
        node = next((node for node in nodes if node.name == table.name), None)
        if node is None:
            names = ", ".join(repr(node.name) for node in nodes)
            raise ConfigError(f"{where}: expected one of the graph's {kind}s ({names}), model.toml has another name")
        datatype = _DATATYPES.get(node.type)
        if datatype is None:
            raise ConfigError(f"{where}: {_not_served(node)}")
        if datatype != table.datatype:
            raise ConfigError(f"{where}: the graph has {datatype}, model.toml says {table.datatype}")
        row = node.shape[1:]
        fits = len(row) == len(table.shape) and all(
            not is_fixed(there) or there == here for there, here in zip(row, table.shape, strict=True)
        )
        if node.shape and not fits:  # an empty shape: the graph says nothing
            raise ConfigError(
                f"{where}: expected the shape of the graph without the batch, {_shown(node)}, model.toml has "
                f"{table.shape!r}"
            )


def _check_batch(path: Path, node: Any, max_batch: int | None) -> None:
    """Raise ConfigError unless the graph takes any number of rows, or one where `max_batch` is 1."""
    first = node.shape[0] if node.shape else None
    if not is_fixed(first) or (first == 1 and max_batch == 1):
        return
    by_one = ", or serve rows one by one: max_batch = 1 under [batching]" if first == 1 else ""
    raise ConfigError(
        f"{path}: input {node.name!r}: expected a batch of any size as the first axis, got {_shown(node)}: "
        f"export it with torch.onnx.export(..., dynamo=True, dynamic_shapes={{{node.name!r}: "
        f"{{0: torch.export.Dim.DYNAMIC}}}}){by_one}"
    )


def _shown(node: Any) -> str:
    """The shape as text: [batch, 3, ?]."""
    return f"[{', '.join('?' if axis is None else str(axis) for axis in node.shape)}]"
