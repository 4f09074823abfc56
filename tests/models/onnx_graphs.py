"""Small ONNX graphs, put together by hand: torch's exporter takes seconds for each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def tensor(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes, inputs, outputs, weights=()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    initializers = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name)
        for name, value in dict(weights).items()
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def linear(path: Path, batch: str | int | None = "batch", kind: int = FLOAT) -> Path:
    """x [batch, 3] -> y [batch, 2]: the sum of the row, and its first value."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = np.array([[1, 1], [1, 0], [1, 0]], dtype)
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"])]
    return save(path, nodes, [tensor("x", [batch, 3], kind)], [tensor("y", [batch, 2], kind)], {"weight": weight})


def doubled(path: Path) -> Path:
    """Two inputs of a variable axis, an output that has it and one that has not."""
    nodes = [
        helper.make_node("Mul", ["values", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["total"], keepdims=0),
    ]
    inputs = [tensor("values", ["rows", "time"]), tensor("mask", ["rows", "time"])]
    outputs = [tensor("kept", ["rows", "time"]), tensor("total", ["rows"])]
    return save(path, nodes, inputs, outputs, {"axis": np.array([1])})


def text(path: Path) -> Path:
    """Words, and the same words."""
    nodes = [helper.make_node("Identity", ["words"], ["same"])]
    string = TensorProto.STRING
    return save(path, nodes, [tensor("words", ["n", 1], string)], [tensor("same", ["n", 1], string)])
