"""Invariant: rows are stacked with padding and nothing else between them, and an output has the shape it declares."""

from __future__ import annotations

import numpy as np
import pytest

from app.contract import DATATYPES
from app.engine.tensors import stack
from app.errors import ConfigError
from app.models.base import check_shape

from .rig import tensor

PADS = {
    "FP32": (-1.5, -1.5),
    "BF16": (0.5, 0x3F00),
    "BOOL": (True, True),
    "BYTES": (0, b""),
    "UINT64": (2**63 + 1,) * 2,
}


@pytest.mark.parametrize("datatype", DATATYPES)
def test_shorter_rows_are_padded(datatype: str):
    pad, stored = PADS.get(datatype, (7, 7))
    spec = tensor("t", datatype, ("h", 0), 2, ("w", 0), pad_value=pad)
    shapes = [(1, 2, 3), (2, 2, 1), (2, 2, 3)]
    rows = [np.full(shape, b"x" if datatype == "BYTES" else 1).astype(spec.dtype) for shape in shapes]
    batch = stack(rows, spec)
    assert (batch.dtype, batch.shape) == (spec.dtype, (3, 2, 2, 3))
    for row, (h, _, w) in enumerate(shapes):
        assert (batch[row, :h, :, :w] == rows[row]).all()
        assert (batch[row, h:] == stored).all()
        assert (batch[row, :, :, w:] == stored).all()


def test_a_batch_is_memory_of_its_own():
    spec = tensor("t", "INT64", ("n", 0))
    row = np.frombuffer(np.arange(3).tobytes(), np.int64)  # read-only, as a request's body is
    for rows in ([row], [row, row], [row, row[:1]]):
        batch = stack(rows, spec)
        batch[:] = 9
        assert row.tolist() == [0, 1, 2]


def test_padding_does_not_make_a_batch_many_times_as_large_as_its_rows():
    """Two axes: each row is 80 KB, a batch of both would be 800 MB."""
    spec = tensor("t", "FP64", ("h", 0), ("w", 0))
    tall, wide = np.ones((10_000, 1)), np.ones((1, 10_000))
    with pytest.raises(MemoryError, match=r"input 't': 2 rows padded to \[10000, 10000\] would take 1600000000 bytes"):
        stack([tall, wide], spec)
    assert stack([tall, tall[:5000]], spec).shape == (2, 10_000, 1)
    assert stack([np.ones((1, 1000)), np.ones((1000, 1))], spec).shape == (2, 1000, 1000)  # small as it is


OUTPUT = tensor("y", "FP32", ("tokens", 9), 2, ("y.2", 0))


@pytest.mark.parametrize("shape", [(3, 5, 2, 1), (3, 5, 2, 70)])
def test_an_output_of_the_declared_shape(shape):
    check_shape(OUTPUT, np.zeros(shape), 3, {"tokens": 5, "other": 7})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 4, 2, 1), "output 'y': expected the length 5 that the inputs have along axis 'tokens', got 4"),
        ((3, 6, 2, 1), "output 'y': expected the length 5 that the inputs have along axis 'tokens', got 6"),
        ((2, 5, 2, 1), r"output 'y': expected shape \[3, 5, 2, -1\], got \[2, 5, 2, 1\]"),
        ((3, 5, 3, 1), r"expected shape \[3, 5, 2, -1\], got \[3, 5, 3, 1\]"),
        ((3, 5, 2), r"expected shape \[3, 5, 2, -1\], got \[3, 5, 2\]"),
        ((), r"expected shape \[3, 5, 2, -1\], got \[\]"),
    ],
)
def test_an_output_of_another_shape(shape, message):
    with pytest.raises(ConfigError, match=message):
        check_shape(OUTPUT, np.zeros(shape), 3, {"tokens": 5})
