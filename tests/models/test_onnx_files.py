"""Invariant: all files of a graph's weights are found by their names in it, and none outside of its folder."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from app.errors import ConfigError
from app.models.sources.onnx_model import OnnxModel, external_files
from planner.commands.new_folder import make

from . import onnx_graphs


def outside(tensor, folder, location):
    """Put a tensor's values into a file."""
    values, path = bytes(tensor.raw_data), folder / location
    before = path.read_bytes() if path.is_file() and folder in path.parents else b""
    set_external_data(tensor, location, offset=len(before), length=len(values))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    if not location.startswith(("/", "..")) and location:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(before + values)


def graph_in(folder, first, second):
    """x [batch, 3] -> y [batch, 2]: a product with weights in the one file, a sum with a constant's in the other."""
    weight = numpy_helper.from_array(np.ones((3, 2), np.float32), "weight")
    constant = numpy_helper.from_array(np.full(2, 4, np.float32), "four")
    outside(weight, folder, first)
    outside(constant, folder, second)
    nodes = [
        helper.make_node("Constant", [], ["four"], value=constant),
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Add", ["product", "zero"], ["same"]),
        helper.make_node("Add", ["same", "four"], ["y"]),
    ]
    inputs, outputs = [onnx_graphs.tensor("x", ["batch", 3])], [onnx_graphs.tensor("y", ["batch", 2])]
    weights = {"weight": weight, "zero": np.zeros(2, np.float32)}
    return onnx_graphs.save(folder / "net.onnx", nodes, inputs, outputs, weights)


@pytest.mark.parametrize(
    ("first", "second"),
    [("weights.bin", "weights.bin"), ("model.onnx_data", "parts/b/größe 2"), ("a", f"{'b' * 130}.data")],
)
def test_new_copies_all_files_of_weights(tmp_path, first, second):
    path = graph_in(tmp_path / "in", first, second)
    (tmp_path / "in" / "other.bin").write_bytes(b"")
    assert sorted(external_files(path)) == sorted({first, second})
    made = make(tmp_path / "net", str(path), [])
    assert made.checked.error == ""
    assert set(made.files) == {"net.onnx", first, second, "model.toml", "request.json"}


def test_weights_may_be_written_over_while_they_serve(tmp_path):
    served = OnnxModel(graph_in(tmp_path, "weights.bin", "weights.bin"), ["x"], ["y"])
    before = served(torch.ones(1, 3))[0]
    weights = tmp_path / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert served(torch.ones(1, 3))[0].tolist() == before.tolist() == [[7, 7]]


@pytest.mark.parametrize("name", ["/etc/hostname", "../weights.bin", "a/../../weights.bin"])
def test_files_outside_of_the_folder_are_refused(tmp_path, name):
    (tmp_path / "weights.bin").write_bytes(b"")
    path = graph_in(tmp_path / "in", "weights.bin", name)
    with pytest.raises(ConfigError, match=r"net\.onnx: expected its weights in files beside it, got "):
        make(tmp_path / "net", str(path), [])
    assert not (tmp_path / "net").exists()


def test_a_file_that_is_missing_is_named(tmp_path):
    path = graph_in(tmp_path / "in", "weights.bin", "more.bin")
    (tmp_path / "in" / "more.bin").unlink()
    with pytest.raises(ConfigError, match=r"more\.bin: expected a file, got nothing"):
        make(tmp_path / "net", str(path), [])


def test_weights_in_a_branch_and_in_a_function_are_found(tmp_path):
    def constant(location):
        tensor = numpy_helper.from_array(np.ones(2, np.float32), "one")
        outside(tensor, tmp_path, location)
        return helper.make_node("Constant", [], ["one"], value=tensor)

    branch = helper.make_graph([constant("branch")], "branch", [], [onnx_graphs.tensor("one", [2])])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([node], "graph", [], [onnx_graphs.tensor("y", [2])])
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "F", [], ["one"], [constant("function")], opsets)
    model = helper.make_model(graph, opset_imports=opsets, functions=[function])
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    assert external_files(tmp_path / "net.onnx") == ["branch", "function"]


def test_a_location_in_the_metadata_is_no_file(tmp_path):
    path = graph_in(tmp_path / "in", "weights.bin", "weights.bin")
    model = onnx.load(path, load_external_data=False)
    for holder in (model, model.graph, model.graph.node[0], model.graph.initializer[0]):
        helper.set_model_props(holder, {"j": "j", "location": "../Oslo", "locations": "location" * 20})
    path.write_bytes(model.SerializeToString())
    assert external_files(path) == ["weights.bin"]


@pytest.mark.parametrize("content", [b"", b"j\x0b\n\x08location\x12", b"j\x0d\n\x08location\x12\x01\xff", b"no graph"])
def test_what_is_no_graph_is_refused(tmp_path, content):
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(ConfigError, match=r"net\.onnx: expected an ONNX "):
        make(tmp_path / "net", str(tmp_path / "net.onnx"), [])
