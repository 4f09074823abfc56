"""An ONNX graph run by onnxruntime on the CPU, and what model.toml need not repeat of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.contract import Array
from app.errors import ConfigError
from app.models.description.tables import InputTable, OutputTable, TensorTable
from app.models.sources.onnx_file import Interface, Value, read_interface
from app.models.sources.texts import as_bytes, as_text

_FATAL = 4  # of onnxruntime's log: its errors reach us as exceptions, and its lines have colour codes


class OnnxModel:
    """Called with one tensor per input, in the order of `inputs`; returns arrays in the order of `outputs`.

    Any number of threads may call it at once. It is no nn.Module, so it stays on the CPU beside a GPU.
    """

    def __init__(self, path: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int | None = None) -> None:
        """`threads` beats those of the worker. Raises ConfigError where onnxruntime is missing or refuses the file."""
        self._path = path
        self._inputs = tuple(inputs)
        self._outputs = list(outputs)
        self._fixed = threads is not None
        self.threads = threads or torch.get_num_threads()
        self._session = _session(path, self.threads)

    def use_threads(self, threads: int) -> None:
        """Compute with as many threads as the worker has, unless model.toml says how many."""
        if not self._fixed and threads != self.threads:
            self.threads = threads
            self._session = _session(self._path, threads)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        feed = {name: _fed(value) for name, value in zip(self._inputs, inputs, strict=True)}
        return tuple(as_bytes(value) for value in self._session.run(self._outputs, feed))


def _session(path: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ConfigError("onnxruntime is not installed: pip install 'starling-serve[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # Threads that spin between two batches would take the cores of the event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _fed(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        return np.ascontiguousarray(value.numpy())
    return as_text(value)


def open_onnx(
    path: Path,
    inputs: Sequence[InputTable],
    outputs: Sequence[OutputTable],
    kwargs: Mapping[str, Any],
    max_batch: int | None = None,
) -> OnnxModel:
    """The graph, if model.toml declares what it takes and gives. Raises ConfigError naming the file and the tensor.

    `max_batch` of 1 allows a graph that was exported for a batch of one row.
    """
    wrong = sorted(set(kwargs) - {"threads"})
    if wrong:
        raise ConfigError(f"kwargs.{wrong[0]}: expected no more than threads, an ONNX model takes no arguments")
    threads = kwargs.get("threads")
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise ConfigError(f"kwargs.threads: expected a number of threads, at least 1, got {threads!r}")
    graph = read_interface(path)
    _check(path, "input", inputs, graph.inputs)
    _check(path, "output", outputs, graph.outputs)
    left = [value.name for value in graph.inputs if value.name not in {table.name for table in inputs}]
    if left:
        raise ConfigError(f"{path}: input {left[0]!r}: expected it among the inputs of model.toml, which has none")
    _check_batch(path, graph, max_batch)
    return OnnxModel(path, [table.name for table in inputs], [table.name for table in outputs], threads)


def _check(path: Path, kind: str, tables: Sequence[TensorTable], values: Sequence[Value]) -> None:
    """Raise ConfigError unless each tensor of model.toml is in the graph, with that type and shape."""
    known = {value.name: value for value in values}
    for table in tables:
        where = f"{path}: {kind} {table.name!r}"
        value = known.get(table.name)
        if value is None:
            names = ", ".join(map(repr, known))
            raise ConfigError(f"{where}: expected one of the graph's {kind}s ({names}), model.toml has another name")
        if value.datatype != table.datatype:
            raise ConfigError(
                f"{where}: {value.served()}, model.toml says {table.datatype}" if value.datatype else
                f"{where}: {value.served()}"
            )  # fmt: skip
        fits = value.shape is None or (
            len(value.shape) == len(table.shape) + 1
            and all(
                not isinstance(there, int) or there == here
                for there, here in zip(value.shape[1:], table.shape, strict=True)
            )
        )
        if not fits:
            raise ConfigError(
                f"{where}: expected the shape of the graph without the batch, {value.told()}, model.toml has "
                f"{table.shape!r}"
            )


def _check_batch(path: Path, graph: Interface, max_batch: int | None) -> None:
    for value in graph.inputs:
        first = value.shape[0] if value.shape else None
        if value.shape == ():
            raise ConfigError(f"{path}: input {value.name!r}: expected a batch as the first axis, got one value, []")
        if isinstance(first, int) and not (first == 1 and max_batch == 1):
            by_one = ", or serve rows one by one: max_batch = 1 under [batching]" if first == 1 else ""
            raise ConfigError(
                f"{path}: input {value.name!r}: expected a batch of any size as the first axis, got {value.told()}: "
                f"export it with torch.onnx.export(..., dynamo=True, dynamic_shapes={{{value.name!r}: "
                f"{{0: torch.export.Dim.DYNAMIC}}}}){by_one}"
            )
