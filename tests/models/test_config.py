"""Invariant: a model.toml either means one ModelInfo or raises a ConfigError that names file, key and expectation."""

from __future__ import annotations

import pytest

from app.contract import Batching
from app.errors import ConfigError
from app.models.description.config import model_info, read_config

from .folders import TOML, source_of, table, toml_of, write_model

SEQUENCE = toml_of(
    table("inputs", "ids", "INT64", '["tokens"]', "max_shape = [128]", "pad_value = 7"),
    table("inputs", "extra", "FP32", "[2, -1]", "max_shape = [2, 9]"),
    table("outputs", "per_token", "FP32", '["tokens", 4]'),
    table("outputs", "scalar", "INT64", "[]"),
)


def read(tmp_path, toml, overrides=None):
    folder = write_model(tmp_path / "m", toml)
    return model_info(read_config(folder), source_of(folder, version=3), overrides)


def test_a_file_may_begin_with_the_mark_of_editors_on_windows(tmp_path):
    assert read(tmp_path, "\ufeff" + TOML.replace("\n", "\r\n")).inputs[0].name == "x"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", (None, None, False, 1)),
        ("minimum = 5", (5, None, True, 5)),
        ("maximum = 0", (None, 0, True, 0)),
        ("minimum = -3\nmaximum = 9", (-3, 9, True, 1)),
    ],
)
def test_integers_may_have_bounds_and_an_example_within_them(tmp_path, lines, expected):
    (x,) = read(tmp_path, TOML.replace('datatype = "FP32"', f'datatype = "INT32"\n{lines}', 1)).inputs
    assert (x.minimum, x.maximum, x.ranged, x.example) == expected


def test_variable_axes_get_names_and_bounds(tmp_path):
    info = read(tmp_path, SEQUENCE)
    ids, extra = info.inputs
    assert (ids.shape, ids.axes, ids.bounds, ids.pad_value) == ((-1,), ("tokens",), (128,), 7)
    assert (extra.shape, extra.axes, extra.bounds) == ((2, -1), ("", "extra.1"), (2, 9))
    per_token, scalar = info.outputs
    assert (per_token.shape, per_token.axes, per_token.bounds) == ((-1, 4), ("tokens", ""), (128, 4))
    assert (scalar.shape, scalar.axes, scalar.bounds) == ((), (), ())


def test_overrides_beat_the_file(tmp_path):
    given = "max_batch = 4\nmax_delay_ms = 2\nlength_buckets = [8, 16]\nreorder = false\ncomplete_wait = 0.5\n"
    toml = TOML + "[batching]\n" + given
    info = read(tmp_path, toml, {"max_batch": 16, "policy": "window"})
    both = {"max_delay_ms": 2, "length_buckets": (8, 16), "reorder": False, "complete_wait": 0.5}
    assert info.batching == Batching(policy="window", max_batch=16, **both)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "model.py:build"', "", "source: expected a value, got none"),
        ('"model.py:build"', '"https://a.example/m.onnx"', "source: expected a file or a class, no address"),
        (
            "[[outputs]]",
            "[outputs]",
            r"outputs: expected a list of tables, \[\[outputs\]\], got one table, \[outputs\]$",
        ),
        ("shape = [3]", "shape = [3]\nmax_shape = { x = 3 }", r"inputs\[0\].max_shape: expected a list, got {'x': 3}"),
        ("source =", "sources =", "sources: unknown key; expected one of source, "),
        ("model.py:build", "", "source: expected at least 1 character, got ''"),
        (table("inputs", "x", "FP32", "[3]"), 'inputs = ["x"]', r"inputs\[0\]: expected a table, got 'x'"),
        ("datatype =", "dtype =", r"inputs\[0\].dtype: unknown key; expected one of name, datatype"),
        ("shape = [3]", 'shape = [-1]\npad_value = "0"', r"inputs\[0\].pad_value: expected a number, got '0'"),
        ('source = "model.py:build"', 'source = "m.safetensors"', "source: .* file of weights: name it by weights"),
        ('source = "model.py:build"', 'source = "m.h5"', "source: .* tf2onnx"),
        ('source = "model.py:build"', 'source = "m.pkl"', "source: expected no pickle"),
        ('source = "model.py:build"', 'source = "m.ubj"', "source: .* examples/sklearn"),
        (
            'source = "model.py:build"',
            'source = "m.joblib"\ntrust = true\nkwargs = { methods = { y = "predict" } }',
            "source: expected a network: .* as in examples/sklearn, got 'm.joblib'",
        ),
        ("shape = [3]", "shape = [0]", r"inputs\[0\].shape: expected a list of lengths .* got \[0\]"),
        ("shape = [3]", 'shape = ["a b"]', r"inputs\[0\].shape: expected .* got \['a b'\]"),
        ("shape = [3]", "shape = [-1]\nmax_shape = [2, 3]", r"inputs\[0\].max_shape: expected one length per axis"),
        ('datatype = "FP32"', 'datatype = "FLOAT"', r"inputs\[0\].datatype: expected one of BOOL, .* got 'FLOAT'"),
        ('datatype = "FP32"', 'datatype = "INT8"\npad_value = 300', r"inputs\[0\].pad_value: expected a value of INT8"),
        ('datatype = "FP32"', 'datatype = "FP32"\nminimum = 0', r"inputs\[0\].minimum: expected none for FP32"),
        ('datatype = "FP32"', 'datatype = "INT8"\nminimum = 3\nmaximum = 2', r"maximum: expected at least the minimum"),
        ('name = "x"', 'name = ""', r"inputs\[0\].name: expected a name in one line, .*, got ''"),
        ("[[outputs]]", "[batching]\nmax_size = 3\n[[outputs]]", r"batching.max_size: unknown key; .*max_batch"),
        *(
            ("[[outputs]]", f"[batching]\nobjective = {given}\n[[outputs]]", f"'latency' or 'deadline', got {given}")
            for given in ("'energy'", "0.5")
        ),
        (
            "[[outputs]]",
            "[batching]\npolicy = 'speed'\n[[outputs]]",
            r"batching\.policy: expected one of adaptive, .*, got 'speed'",
        ),
        ("[[outputs]]", "[batching]\nmax_batch = '8'\n[[outputs]]", r"batching.max_batch: expected an integer, got"),
        ("[[outputs]]", "[batching]\nlength_buckets = 8\n[[outputs]]", "length_buckets: expected a list, got 8$"),
        ("[[inputs]]", "cuts = []\n[[inputs]]", r"cuts: expected at least 1 item, got \[\]$"),
        ("[[inputs]]", "colour = 1\n[[inputs]]", "colour: unknown key; expected one of source, kwargs.*batching$"),
        (
            "[[inputs]]",
            "max_batch = 1\n[[inputs]]",
            r"max_batch: unknown key; .*; max_batch stands under \[batching\]$",
        ),
        (
            "[[outputs]]",
            "[batching]\nstages = 2\n[[outputs]]",
            r"unknown key; .*; stages stands above the first \[table\]$",
        ),
        ("[[inputs]]", 'row_check = "no"\n[[inputs]]', "row_check: expected 'refuse', 'warn' or 'off', got 'no'"),
        ("[[outputs]]", "[warmup]\nfile = 'x.txt'\n[[outputs]]", "warmup.file: expected a .json or .npz file, got 'x"),
        ("[[outputs]]", '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [1]\n[[outputs]]', "inputs: .*'x' more"),
        ("[[inputs]]", "[[inputs", "expected a readable TOML file"),
        ("shape", "x = " + "[" * 100_000, "expected a readable TOML file: .* nested too deeply"),
    ],
)
def test_a_wrong_file_names_file_key_and_expectation(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, TOML.replace(old, new, 1))
    assert str(caught.value).startswith(str(tmp_path / "m" / "model.toml") + ": ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shape = [2, -1]\nmax_shape = [2, 9]", 'shape = ["tokens"]\nmax_shape = [9]', r"inputs\[1\].max_shape: .*128"),
        ('shape = ["tokens", 4]', 'shape = [4]\nlabels = "none.txt"', r"outputs\[0\].labels: expected a readable text"),
    ],
)
def test_tensors_that_do_not_fit_together(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, SEQUENCE.replace(old, new, 1))


def test_labels_must_be_as_many_as_values(tmp_path):
    folder = write_model(tmp_path / "m", TOML + 'labels = "names.txt"\n')
    (folder / "names.txt").write_text("a\nb\n")
    with pytest.raises(ConfigError, match=r"outputs\[0\].labels: expected 3 lines in 'names.txt'.* got 2"):
        model_info(read_config(folder), source_of(folder))


@pytest.mark.parametrize(
    ("overrides", "rows"), [({}, 1024), ({"max_batch": 8}, 1024), ({"max_batch": 64}, 2048),
                            ({"max_batch": 64, "max_queue": 5}, 5)],
)  # fmt: skip
def test_the_queue_grows_with_the_largest_batch(tmp_path, overrides, rows):
    assert read(tmp_path, TOML, overrides).batching.max_queue == rows
