"""Rows are stacked, and what they gave is cut into answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from app.contract import DATATYPES, FinishedBatch
from app.engine.executor import Ran
from app.engine.outputs import joined, note_rows, split_by_length
from app.engine.pool import neighbours
from app.errors import ConfigError
from app.models.base import check_shape, copied, stacked

from .rig import make_model, tensor

# What a row has taken is the sum over its units, and those that end with the same past are answered as one batch.


def rows_of(count: int) -> list[Any]:
    return [SimpleNamespace(index=0, call=SimpleNamespace(places=[None])) for _ in range(count)]


def unit_of(*rows: Any) -> Any:
    return SimpleNamespace(rows=rows, worker=0, reason="idle")


def test_steps_of_rows_that_join_and_leave() -> None:
    first, second, late = rows_of(3)
    note_rows(unit_of(first, second), Ran([], 1, 2, 3), 10, (1, 2, 3), ())
    outputs = [np.zeros(2)]
    over = note_rows(unit_of(first, late, second), Ran(outputs, 1, 1, 1), 20, (1, 1, 1), (0, 2))
    assert [row.call.places for row in (first, second)] == [[(over[0], 0)], [(over[0], 1)]]  # answered together
    assert (over[0].times, over[0].size, len(over)) == ((2, 3, 4), 3, 1)
    (last,) = note_rows(unit_of(late), Ran(outputs, 5, 5, 5), 30, (5, 5, 5), (0,))
    assert (last.times, last.ended) == ((6, 6, 6), 30)
    assert over[0].times == (2, 3, 4)


def test_stages_of_rows_that_meet_at_a_boundary() -> None:
    first, second = rows_of(2)
    note_rows(unit_of(first), Ran([], 1, 1, 1), 10, (1, 1, 1), ())
    note_rows(unit_of(second), Ran([], 5, 5, 5), 20, (5, 5, 5), ())
    batches = note_rows(unit_of(first, second), Ran([], 1, 1, 1), 30, (1, 2, 3), range(2))
    assert [batch.times for batch in batches] == [(2, 3, 4), (6, 7, 8)]
    assert [row.call.places for row in (first, second)] == [[(batches[0], 0)], [(batches[1], 1)]]


def test_rows_that_ran_for_different_numbers_of_steps_get_outputs_of_their_own() -> None:
    """Cut to their lengths where an output is as long as a row ran; all else stays as it was of the batch."""
    rows, of_batch = rows_of(2), (20, (1, 2, 3), 3, 1, "full")
    for row in rows:
        row.call.places[0] = (FinishedBatch([], *of_batch), 1)
    info: Any = SimpleNamespace(outputs=("steps", "label"), has_own_length=lambda spec: spec == "steps")
    split_by_length(rows, info, [np.arange(8).reshape(2, 4), np.array([5, 6])], np.array([1, 3]))
    for row, wanted in zip(rows, ([[[0]], [5]], [[[4, 5, 6]], [6]]), strict=True):
        ((batch, position),) = row.call.places
        assert ([array.tolist() for array in batch.arrays], position) == (wanted, 0)
        assert (batch.ended, batch.times, batch.size, batch.worker, batch.reason) == of_batch


def test_rows_that_are_no_neighbours_in_their_batch_are_joined_in_the_calls_order() -> None:
    info = make_model().info
    one = FinishedBatch([np.array([[0.0], [1.0], [2.0], [3.0]])])
    other = FinishedBatch([np.array([[10.0], [11.0]])])
    places = [(one, 1), (one, 2), (other, 0), (one, 3), (one, 0)]
    outputs, lengths = joined(neighbours(places), info, {}, differ=False)
    assert (outputs[0].tolist(), lengths) == ([[1], [2], [10], [3], [0]], None)


# Invariant: rows are stacked with padding and nothing else between them, and an output has the shape it declares.


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
    batch = copied(stacked(rows, spec), spec, 3)
    assert (batch.dtype, batch.shape) == (spec.dtype, (3, 2, 2, 3))
    for row, (h, _, w) in enumerate(shapes):
        assert (batch[row, :h, :, :w] == rows[row]).all()
        assert (batch[row, h:] == stored).all()
        assert (batch[row, :, :, w:] == stored).all()


def test_a_batch_is_memory_of_its_own():
    spec = tensor("t", "INT64", ("n", 0))
    row = np.frombuffer(np.arange(3).tobytes(), np.int64)  # read-only, as a request's body is
    for rows in ([row], [row, row], [row, row[:1]]):
        batch = stacked(rows, spec)
        batch[:] = 9
        assert row.tolist() == [0, 1, 2]


def test_padding_does_not_make_a_batch_many_times_as_large_as_its_rows():
    """Two axes: each row is 80 KB, a batch of both would be 800 MB."""
    spec = tensor("t", "FP64", ("h", 0), ("w", 0))
    tall, wide = np.ones((10_000, 1)), np.ones((1, 10_000))
    with pytest.raises(MemoryError, match=r"input 't': 2 rows padded to \[10000, 10000\] would take 1600000000 bytes"):
        stacked([tall, wide], spec)
    assert stacked([tall, tall[:5000]], spec).shape == (2, 10_000, 1)
    assert stacked([np.ones((1, 1000)), np.ones((1000, 1))], spec).shape == (2, 1000, 1000)  # small as it is


OUTPUT = tensor("y", "FP32", ("tokens", 9), 2, ("y.2", 0))


@pytest.mark.parametrize("shape", [(3, 5, 2, 1), (3, 5, 2, 70)])
def test_an_output_of_the_declared_shape(shape):
    check_shape(OUTPUT, np.zeros(shape), 3, {"tokens": 5, "other": 7})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (3, 4, 2, 1),
            "output 'y': expected the length 5 that the inputs have along axis 'tokens', got 4; pad an output of",
        ),
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


def test_a_tensor_of_torch_is_copied_whatever_it_is_lazy_about() -> None:
    x, y = torch.ones(2, 3), tensor("y", "FP32", 3)
    assert copied(torch.complex(x, x).conj().imag, y, 1).tolist() == [[-1, -1, -1]]  # a view with its negative bit set
    assert copied(x.clone().requires_grad_(), y, 2).tolist() == x.tolist()
    with pytest.raises(ConfigError, match=r"expected FP32 \(torch\.float32\), got torch\.bfloat16"):
        copied(x.bfloat16(), y, 2)


@pytest.mark.parametrize(
    "lazy", [lambda x: (x.T * 2).T, lambda x: np.asfortranarray(x.numpy()), lambda x: x.flip(1).mT.mT]
)
def test_rows_are_copied_one_after_another_as_their_encoding_needs(lazy: Any) -> None:
    x = torch.arange(6.0).view(2, 3)
    rows = copied(lazy(x), tensor("y", "FP32", 3), 2)
    assert rows.flags.c_contiguous
    assert rows.tolist() == lazy(x).tolist()


def filled(*values: Any) -> Any:
    array = np.empty((len(values), 1), object)
    for place, value in enumerate(values):
        array[place, 0] = value
    return array


@pytest.mark.parametrize("wrong", [None, ["a"], "\ud800"], ids=["None", "a list", "half a character"])
def test_elements_of_bytes_are_texts(wrong: Any) -> None:
    y = tensor("y", "BYTES", 1)
    given = filled(b"a", "b", bytearray(b"c"), np.int64(3), 0.5, wrong)
    assert copied(given, y, 5).tolist() == [[b"a"], ["b"], [b"c"], ["3"], ["0.5"]]
    with pytest.raises((ConfigError, UnicodeEncodeError), match=r"expected bytes or str in each place|surrogates"):
        copied(given, y, 6)
