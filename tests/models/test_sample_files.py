"""Invariant: a file of samples gives rows that fit the inputs, or a ConfigError that names file, key and both sides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract import DATATYPES, UNBOUNDED, ModelInfo, SampleRow, TensorSpec
from app.errors import ConfigError
from app.models.checks.sample_files import read_samples
from app.models.loading import load

from .folders import TOML, source_of, write_model

IDS = TensorSpec("ids", "INT32", (-1,), ("tokens",), (8,), minimum=0, maximum=99)
MASK = TensorSpec("mask", "FP32", (-1,), ("tokens",), (8,))


def info(*inputs: TensorSpec) -> ModelInfo:
    return ModelInfo("m", "1", "pytorch", inputs, ())


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def from_json(path: Path, bodies: Any, *inputs: TensorSpec) -> tuple[SampleRow, ...]:
    file = path / "sample.json"
    file.write_text(bodies if isinstance(bodies, str) else json.dumps(bodies))
    return read_samples(file, info(*inputs))


def from_npz(path: Path, arrays: dict[str, Any], *inputs: TensorSpec) -> tuple[SampleRow, ...]:
    np.savez(path / "sample.npz", **arrays)
    return read_samples(path / "sample.npz", info(*inputs))


def listed(rows: tuple[SampleRow, ...], index: int = 0) -> list[Any]:
    return [row.arrays[index].tolist() for row in rows]


def test_one_request_of_several_rows(tmp_path: Path) -> None:
    body = {
        "id": "7",
        "parameters": {"gain": 2},
        "inputs": [
            tensor("mask", "FP32", [2, 3], [1, 1, 0, 0.5, 1, 1]),
            tensor("ids", "INT32", [2, 3], [[1, 2, 3], [4, 5, 6]]),
        ],
    }
    rows = from_json(tmp_path, body, IDS, MASK)
    assert listed(rows) == [[1, 2, 3], [4, 5, 6]]
    assert listed(rows, 1) == [[1, 1, 0], [0.5, 1, 1]]
    for row in rows:
        assert ([array.dtype for array in row.arrays], row.lengths) == ([np.int32, np.float32], {"tokens": 3})
        assert row.parameters == {"gain": 2}


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_in_both_formats(tmp_path: Path, datatype: str) -> None:
    spec = TensorSpec("x", datatype, (2,), ("",), (2,))
    values: list[Any] = {"BYTES": ["a", "ö"], "BOOL": [True, False]}.get(datatype, [1, 2])
    expected = {"BYTES": [b"a", "ö".encode()], "BF16": [0x3F80, 0x4000]}.get(datatype, values)
    (row,) = from_json(tmp_path, {"inputs": [tensor("x", datatype, [1, 2], values)]}, spec)
    (other,) = from_npz(tmp_path, {"x": np.array([values])}, spec)
    for array in (row.arrays[0], other.arrays[0]):
        assert (array.dtype, array.tolist()) == (DATATYPES[datatype], expected)


def beside_mask(datatype: str, shape: Any, data: Any) -> dict[str, Any]:
    return {"inputs": [tensor("ids", datatype, shape, data), tensor("mask", "FP32", [1, 1], [1])]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "expected a readable .json file"),
        ("[]", r"expected a V2 request body or a list of them, got \[\]"),
        ({"inputs": [], "parameters": 3}, "parameters: expected an object, got 3"),
        ({"inputs": [{"name": "idz"}]}, "inputs: expected the inputs ids, mask, got 'idz'"),
        (beside_mask("INT64", [1, 1], [1]), r"\(ids\).datatype: expected INT32, got 'INT64'"),
        (beside_mask("INT32", [0, 1], []), r"\(ids\).shape: expected at least 1 row"),
        (beside_mask("INT32", [1, 2], [1]), r"\(ids\).data: expected 2 values for shape \[1, 2\], got 1"),
        (beside_mask("INT32", [1, 1], [1.5]), r"\(ids\).data: expected INT32 values, got the number 1.5"),
    ],
)
def test_a_wrong_request_names_the_key(tmp_path: Path, body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_json(tmp_path, body, IDS, MASK)
    assert str(caught.value).startswith(f"{tmp_path / 'sample.json'}: ")


def test_values_may_be_missing_where_they_may_in_requests(tmp_path: Path) -> None:
    x = TensorSpec("x", "FP64", (), (), (), missing=True)
    (one, other) = from_json(tmp_path, {"inputs": [tensor("x", "FP64", [2], [1, None])]}, x)
    assert (one.arrays[0], np.isnan(other.arrays[0])) == (1, True)
    city = TensorSpec("city", "BYTES", (), (), (), categories=(b"Bonn",))
    with pytest.raises(ConfigError, match="input 'city': expected one of 'Bonn', got 'Rom'"):
        from_json(tmp_path, {"inputs": [tensor("city", "BYTES", [1], ["Rom"])]}, city)


def test_samples_have_what_clients_send(tmp_path: Path) -> None:
    """Of any length where the axis has no bound; what the server makes is in no sample."""
    ids = replace(IDS, bounds=(UNBOUNDED,))
    mask, n = replace(MASK, mask_of="ids"), TensorSpec("n", "INT64", (), (), (), lengths_of="tokens")
    (row,) = from_npz(tmp_path, {"ids": [[5] * 500]}, mask, ids, n)
    assert ([len(array) for array in row.arrays], row.lengths) == ([500], {"tokens": 500})
    with pytest.raises(ConfigError, match="expected the inputs ids, got 'mask'"):
        from_npz(tmp_path, {"ids": [[5]], "mask": [[1]]}, mask, ids, n)
    body = {"inputs": [tensor("ids", "INT32", [1, 1], [5]), tensor("n", "INT64", [1], [1])]}
    with pytest.raises(ConfigError, match="inputs: expected the inputs ids, got 'n'"):
        from_json(tmp_path, body, mask, ids, n)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "expected the inputs ids, mask, got none of 'ids'"),
        ({"other": [[1]]}, "expected the inputs ids, mask, got 'other'"),
        ({"ids": [[1]], "mask": [[1], [2]]}, "expected one number of rows.* 1 of 'ids', 2 of 'mask'"),
        ({"ids": [[1] * 9], "mask": [[1] * 9]}, r"ids: expected shape \[rows, tokens <= 8\], got \[1, 9\]"),
        ({"ids": [[1, 2]], "mask": [[1]]}, "mask: axis 'tokens' has length 1 here, but 2 in an input"),
        ({"ids": [[1.5]], "mask": [[1]]}, "ids: expected values that fit INT32, got dtype float64"),
        ({"ids": [[100]], "mask": [[1]]}, "'ids': expected values from 0 to 99, got 100"),
        ({"ids": np.array([[{}]], object), "mask": [[1]]}, "expected a readable .npz file: Object arrays"),
    ],
)
def test_wrong_arrays_name_the_input(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_npz(tmp_path, arrays, IDS, MASK)
    assert str(caught.value).startswith(f"{tmp_path / 'sample.npz'}: ")


# model.toml


def test_a_model_brings_its_samples_and_its_row_check(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", f'row_check = "warn"\n{TOML}[warmup]\nfile = "x.npz"\n')
    np.savez(folder / "x.npz", x=np.eye(3))
    model = load(source_of(folder))
    assert listed(model.samples) == np.eye(3).tolist()
    assert model.row_check == "warn"
    assert load(source_of(folder), {"row_check": "off", "max_batch": 4}).row_check == "off"
    assert load(source_of(folder), {"row_check": None}).row_check == "warn"
    plain = load(source_of(write_model(tmp_path / "plain")))
    assert (plain.samples, plain.row_check) == ((), "refuse")
