"""Rows to try a model with: made up by what its inputs declare, or read from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import specs

from app.contract import DATATYPES, UNBOUNDED, SampleRow
from app.errors import ConfigError
from app.models.checks.sample_files import read_samples
from app.models.checks.samples import ROWS, made_up_rows, row_check_rows, short_lengths, stack

from .folders import TOML, loaded, write_model

# Invariant: rows made up for a model keep to what its inputs declare, and equal seeds give equal rows.


spec = partial(specs.spec, bound=128)


def info(*inputs, **batching):
    return specs.info_of(inputs, **batching)


def made(*inputs, rows=4, seed=0):
    return made_up_rows(inputs, [short_lengths(inputs)] * rows, seed)


def values(rows, index=0):
    return [row.arrays[index].ravel().tolist() for row in rows]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_rows_have_the_declared_dtype_and_shape_and_differ(datatype):
    rows = made(spec("x", datatype, "n", 5))
    for row in rows:
        (array,) = row.arrays
        assert (array.dtype, array.shape, row.lengths) == (DATATYPES[datatype], (16, 5), {"n": 16})
    assert len({repr(one) for one in values(rows)}) == len(rows)
    assert values(rows) == values(made(spec("x", datatype, "n", 5)))
    assert values(rows) != values(made(spec("x", datatype, "n", 5), seed=1))


def drawn(*inputs, index=0):
    return {value for one in values(made(*inputs), index) for value in one}


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if "INT" in name])
def test_integers_keep_to_their_bounds(datatype):
    limits = np.iinfo(DATATYPES[datatype])
    low, high = int(limits.min), int(limits.max)
    for bounds, expected in (
        ((None, None), {0, 1}),  # valid as any index
        ((high, None), {high}),
        ((None, low), {low}),
        ((high - 3, high), set(range(high - 3, high + 1))),
        ((5, None), {5, 6}),
        ((None, 3), {0, 1, 2, 3}),
    ):
        assert drawn(spec("x", datatype, 50, minimum=bounds[0], maximum=bounds[1])) == expected
    if low < 0:
        assert drawn(spec("x", datatype, 50, maximum=-5)) == {-6, -5}


@pytest.mark.parametrize(
    "mask",
    [
        spec("attention_mask", "FP32", "tokens"),
        spec("m", "INT64", "tokens", minimum=0, maximum=1),
        spec("m", "BOOL", "tokens"),
        spec("length", "INT64"),
    ],
)
def test_masks_and_counts_beside_other_inputs_are_ones(mask):
    rows = made(spec("ids", "INT64", "tokens", maximum=30521), mask)
    assert drawn(spec("ids", "INT64", "tokens", maximum=30521), mask, index=1) == {1}
    assert len({repr(one) for one in values(rows)}) == len(rows)


# rows to check with


def lengths_of(rows, axis="n"):
    return [row.lengths[axis] for row in rows]


@pytest.mark.parametrize(
    ("bound", "buckets", "expected"),
    [
        (UNBOUNDED, (1024, 4096), [16] * ROWS + [8] * 2),
        (16, (), [16] * ROWS + [8] * 2),
        (1, (), [1] * ROWS),
        (128, (8,), [16] * ROWS + [9] * 2),
        (32, (20, 30), [16] * ROWS + [8] * 2),
        (64, tuple(range(1, 33)), [34] * ROWS + [33] * 2),
    ],
)
def test_made_up_rows_of_two_lengths_that_may_share_a_batch(bound, buckets, expected):
    rows = row_check_rows(info(spec("x", "FP32", "n", bound=bound), length_buckets=buckets))
    assert lengths_of(rows) == expected


# batches


def test_a_batch_has_the_inputs_that_the_server_makes():
    x = spec("x", "INT64", "n", bound=UNBOUNDED, pad_value=7)
    inputs = [spec("n", "INT32", lengths_of="n"), x, spec("mask", "FP32", "n", mask_of="x")]
    rows = [SampleRow((np.arange(n),), {"n": n}) for n in (3, 1)]
    n, values, mask = stack(inputs, rows, 3)
    assert [n.tolist(), values.tolist()] == [[3, 1, 1], [[0, 1, 2], [0, 7, 7], [0, 7, 7]]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]


def test_padding_of_bf16_is_of_its_value_and_not_of_its_bits():
    rows = [SampleRow((np.zeros(n, np.uint16),), {"n": n}) for n in (2, 1)]
    assert stack([spec("x", "BF16", "n", pad_value=7)], rows, 2)[0].tolist() == [[0, 0], [0, 7]]


# Invariant: a file of samples gives rows that fit the inputs, or a ConfigError that names file, key and both sides.


IDS = spec("ids", "INT32", ("tokens", 8), minimum=0, maximum=99)
MASK = spec("mask", "FP32", ("tokens", 8))


def tensor(name, datatype, shape, data):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def from_json(path, bodies, *inputs):
    file = path / "sample.json"
    file.write_text(bodies if isinstance(bodies, str) else json.dumps(bodies))
    return read_samples(file, info(*inputs))


def from_npz(path, arrays, *inputs):
    np.savez(path / "sample.npz", **arrays)
    return read_samples(path / "sample.npz", info(*inputs))


def listed(rows, index=0):
    return [row.arrays[index].tolist() for row in rows]


def test_one_request_of_several_rows(tmp_path):
    mask = tensor("mask", "FP32", [2, 3], [1, 1, 0, 0.5, 1, 1])
    ids = tensor("ids", "INT32", [2, 3], [[1, 2, 3], [4, 5, 6]])
    rows = from_json(tmp_path, {"id": "7", "parameters": {"gain": 2}, "inputs": [mask, ids]}, IDS, MASK)
    assert listed(rows) == [[1, 2, 3], [4, 5, 6]]
    assert listed(rows, 1) == [[1, 1, 0], [0.5, 1, 1]]
    for row in rows:
        assert ([array.dtype for array in row.arrays], row.lengths) == ([np.int32, np.float32], {"tokens": 3})
        assert row.parameters == {"gain": 2}


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_in_both_formats(tmp_path, datatype):
    x = spec("x", datatype, 2)
    values = {"BYTES": ["a", "ö"], "BOOL": [True, False]}.get(datatype, [1, 2])
    expected = {"BYTES": [b"a", "ö".encode()], "BF16": [0x3F80, 0x4000]}.get(datatype, values)
    (row,) = from_json(tmp_path, {"inputs": [tensor("x", datatype, [1, 2], values)]}, x)
    (other,) = from_npz(tmp_path, {"x": np.array([values])}, x)
    for array in (row.arrays[0], other.arrays[0]):
        assert (array.dtype, array.tolist()) == (DATATYPES[datatype], expected)


def beside_mask(datatype, shape, data):
    return {"inputs": [tensor("ids", datatype, shape, data), tensor("mask", "FP32", [1, 1], [1])]}


def ids_and_mask(ids, mask):
    return {"ids": ids, "mask": mask}


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (from_json, "{", "expected a readable .json file"),
        (from_json, "[]", r"expected a V2 request body or a list of them, got \[\]"),
        (from_json, {"inputs": [], "parameters": 3}, "parameters: expected an object, got 3"),
        (from_json, {"inputs": [{"name": "idz"}]}, "inputs: expected the inputs ids, mask, got 'idz'"),
        (from_json, beside_mask("INT64", [1, 1], [1]), r"\(ids\).datatype: expected INT32, got 'INT64'"),
        (from_json, beside_mask("INT32", [0, 1], []), r"\(ids\).shape: expected at least 1 row"),
        (from_json, beside_mask("INT32", [1, 2], [1]), r"\(ids\).data: expected 2 values for shape \[1, 2\], got 1"),
        (from_json, beside_mask("INT32", [1, 1], [1.5]), r"\(ids\).data: expected INT32 values, got the number 1.5"),
        (from_npz, {}, "expected the inputs ids, mask, got none of 'ids'"),
        (from_npz, {"other": [[1]]}, "expected the inputs ids, mask, got 'other'"),
        (from_npz, ids_and_mask([[1]], [[1], [2]]), "expected one number of rows.* 1 of 'ids', 2 of 'mask'"),
        (from_npz, ids_and_mask([[1] * 9], [[1] * 9]), r"ids: expected shape \[rows, tokens <= 8\], got \[1, 9\]"),
        (from_npz, ids_and_mask([[1, 2]], [[1]]), "mask: axis 'tokens' has length 1 here, but 2 in an input"),
        (from_npz, ids_and_mask([[1.5]], [[1]]), "ids: expected values that fit INT32, got dtype float64"),
        (from_npz, ids_and_mask([[100]], [[1]]), "'ids': expected values of at most 99, got 100"),
        (from_npz, ids_and_mask(np.array([[{}]], object), [[1]]), "expected a readable .npz file: Object arrays"),
    ],
)
def test_wrong_samples_name_the_file_and_the_key(tmp_path, read, content, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, content, IDS, MASK)
    assert str(caught.value).startswith(f"{tmp_path / 'sample.'}")


def test_samples_have_what_clients_send(tmp_path):
    """Of any length where the axis has no bound; what the server makes is in no sample."""
    ids = replace(IDS, bounds=(UNBOUNDED,))
    mask, n = replace(MASK, mask_of="ids"), spec("n", "INT64", lengths_of="tokens")
    (row,) = from_npz(tmp_path, {"ids": [[5] * 500]}, mask, ids, n)
    assert ([len(array) for array in row.arrays], row.lengths) == ([500], {"tokens": 500})
    with pytest.raises(ConfigError, match="expected the inputs ids, got 'mask'"):
        from_npz(tmp_path, ids_and_mask([[5]], [[1]]), mask, ids, n)
    body = {"inputs": [tensor("ids", "INT32", [1, 1], [5]), tensor("n", "INT64", [1], [1])]}
    with pytest.raises(ConfigError, match="inputs: expected the inputs ids, got 'n'"):
        from_json(tmp_path, body, mask, ids, n)


# model.toml


def test_a_model_brings_its_samples_and_its_row_check(tmp_path):
    folder = write_model(tmp_path / "m", f'row_check = "warn"\n{TOML}[warmup]\nfile = "x.npz"\n')
    np.savez(folder / "x.npz", x=np.eye(3))
    model = loaded(folder)
    assert listed(model.checks.samples) == np.eye(3).tolist()
    assert model.checks.row_check == "warn"
    assert loaded(folder, row_check="off", max_batch=4).checks.row_check == "off"
    assert loaded(folder, row_check=None).checks.row_check == "warn"
    plain = loaded(write_model(tmp_path / "plain"))
    assert (plain.checks.samples, plain.checks.row_check) == ((), "refuse")
