"""Invariant: an ONNX graph serves as onnxruntime computes it, and what it cannot do is one line."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from app.engine.cpu.device import CpuDevice
from app.engine.device import DeviceOptions
from app.models.placement import movable
from app.models.repository import Repository
from planner.commands.checked_models import describe

from . import onnx_graphs
from .folders import loaded, refused, table, toml_of, try_out, write_model

BARE = 'source = "model.onnx"\n'


def declared(*x):
    return toml_of(table("inputs", *x), table("outputs", "y", "FP32", "[2]"), head=BARE)


def folder_with(tmp_path, make=onnx_graphs.linear, toml=BARE, **options):
    folder = write_model(tmp_path / "m", toml, None)
    make(folder / "model.onnx", **options)
    return folder


def opened(*args, **options):
    return loaded(folder_with(*args, **options))


def identity(shape, kind=TensorProto.FLOAT, operator="Identity"):
    def make(path):
        node = helper.make_node(operator, ["x"], ["y"])
        x, y = (onnx_graphs.tensor(name, shape, kind) for name in ("x", "y"))
        onnx_graphs.save(path, [node], [x], [y])

    return make


def test_inputs_and_outputs_come_from_the_graph(tmp_path):
    model = opened(tmp_path)
    (x,), (y,) = model.info.inputs, model.info.outputs
    assert (x.name, x.datatype, x.shape) == ("x", "FP32", (3,))
    assert (y.name, y.datatype, y.shape) == ("y", "FP32", (2,))
    assert model.info.platform == "onnxruntime_onnx"
    assert not movable(model)
    assert try_out(model) == []
    for rows in (1, 5):
        values = torch.randn(rows, 3)
        (got,) = model.call(values)
        assert np.allclose(got, np.stack([values.numpy().sum(1), values.numpy()[:, 0]], 1), atol=1e-5)


def test_variable_axes_keep_their_names(tmp_path):
    values = table("inputs", "values", "FP32", '["time"]', "max_shape = [64]")
    mask = table("inputs", "mask", "FP32", '["time"]', 'mask = "values"')
    for text in (BARE, toml_of(values, mask, head=BARE)):
        model = opened(tmp_path, onnx_graphs.doubled, text)
        kept, total = model.info.outputs
        assert (kept.axes, total.axes) == (("time",), ())
        assert try_out(model) == []


def test_text_goes_in_and_out(tmp_path):
    model = opened(tmp_path, onnx_graphs.text)
    assert try_out(model) == []
    (said,) = model.call(np.array([[b"caf\xc3\xa9"], [b""]], dtype=object))
    assert said.tolist() == [["caf\u00e9"], [""]]


def test_a_fixed_batch_says_how_to_export(tmp_path):
    text = refused(folder_with(tmp_path, batch=4))
    assert "input 'x': expected a batch of any size as the first axis, got [4, 3]: export it with" in text
    assert "dynamic_shapes={'x': {0: torch.export.Dim.DYNAMIC}}" in text
    assert "max_batch = 1" not in text
    assert "or serve rows one by one: max_batch = 1" in refused(folder_with(tmp_path, batch=1))
    assert try_out(opened(tmp_path, toml=BARE + "[batching]\nmax_batch = 1\n", batch=1)) == []


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (declared("z", "FP32", "[3]"), "input 'z': expected one of the graph's inputs ('x')"),
        (declared("x", "FP64", "[3]"), "input 'x': the graph has FP32, model.toml says FP64"),
        (declared("x", "FP32", "[4]"), "without the batch, [batch, 3], model.toml has [4]"),
        ("kwargs = { threads = 0 }\n" + BARE, "kwargs.threads: expected a number of threads, at least 1, got 0"),
        ('weights = "w.pt"\n' + BARE, "weights need a source that returns an nn.Module, got OnnxModel"),
    ],
)
def test_what_does_not_fit_the_graph(tmp_path, toml, message):
    assert message in refused(folder_with(tmp_path, toml=toml))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "model.onnx: expected a file, got nothing"),
        (lambda path: path.write_bytes(b"garbage"), "model.onnx: expected an ONNX model"),
        (identity(["n", 2], operator="Nonsense"), "Nonsense"),
        (identity(["n", 2], TensorProto.BFLOAT16), "bfloat16 is served as FP32"),
    ],
    ids=["missing", "garbage", "unknown operator", "bfloat16"],
)
def test_what_cannot_be_served(tmp_path, capfd, make, message):
    assert message in refused(folder_with(tmp_path, make))
    assert "\x1b" not in capfd.readouterr().err


def test_without_onnxruntime_what_to_install_is_named(tmp_path, monkeypatch):
    folder = folder_with(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    wanted = f"onnxruntime is not installed: pip install onnxruntime, in the environment {sys.prefix}"
    assert wanted in refused(folder)
    (listed,) = describe(Repository(tmp_path))
    assert (listed.info, listed.error) == (None, wanted)


def test_threads_are_the_workers_unless_given(tmp_path):
    device = CpuDevice((4,), 2, 2, DeviceOptions())
    for toml, threads in ((BARE, 2), ("kwargs = { threads = 3 }\n" + BARE, 3)):
        model = opened(tmp_path, toml=toml)
        device.open(model, 4)
        assert model.call.threads == threads
        assert model.call.session.get_session_options().intra_op_num_threads == threads
