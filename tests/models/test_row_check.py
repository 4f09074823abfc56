"""Invariant: a model is found out if a row's answer depends on its batch, and only then."""

from __future__ import annotations

import numpy as np
import pytest
from specs import info_of, spec

from app.contract import SampleRow
from app.models.checks.row_check import TOLERANCES, Cause, by_row
from app.models.checks.samples import beside_longer, row_check_rows, stack
from app.models.checks.segment_check import check_segments
from app.models.checks.segments import whole_model

X = spec("x", "FP32", 3)
SEQUENCE = spec("x", "FP32", ("tokens", 32))
Y = spec("y", "FP32", 3)
SCALAR = spec("y", "FP32")
LABEL = spec("label", "INT64")
IMAGE = spec("y", "FP32", 10, 10)
TEXT = spec("text", "BYTES")


def mean_of_words(text):
    """A model that splits its texts, pads them to the most words, and has no mask."""
    words = [list(map(len, one.split())) for one in text]
    most = max(map(len, words))
    return np.array([sum(own) / most for own in words])


def check(call, inputs=(X,), outputs=(Y,), precision="FP32", log=None, **batching):
    """`log` gets the sizes of the batches."""
    info = info_of(inputs, outputs, **batching)

    def run(rows, size):
        if log is not None:
            log.append(size)
        result = call(*(np.asarray(value) for value in stack(inputs, rows, size)))
        return list(result) if isinstance(result, tuple) else [result]

    rows = row_check_rows(info)
    segments = whole_model(info, rows, run, beside_longer(info, rows[0], shortest=True))
    return check_segments(segments, TOLERANCES[precision], info.batching.max_batch)


def softmax(x, axis):
    power = np.exp(x)
    return power / power.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize(("most", "expected"), [(32, [4, 3, 32]), (4, [4, 3, 4]), (2, [2, 2, 2]), (1, [])])
def test_a_model_of_independent_rows_passes(most, expected):
    log = []
    assert check(lambda x: softmax(x, 1), log=log, max_batch=most) is None
    assert log == [1] * (4 if expected else 0) + expected


ANOTHER = spec("y", "FP32", ("y.0", -1))
LEAST = spec("x", "FP32", ("tokens", 32), pad_value=-9.0)
GRID = spec("x", "FP32", ("lines", 32), ("tokens", 32))


@pytest.mark.parametrize(
    ("call", "inputs", "outputs", "cause", "message"),
    [
        (lambda x: softmax(x, 0), X, Y, Cause.COMPANY, "output 'y': 1 alone, 0."),
        (mean_of_words, TEXT, SCALAR, Cause.COMPANY, " in company of 3 other rows"),
        (lambda x: x / 255 if x.max() > 1 else x, IMAGE, IMAGE, Cause.COMPANY, " in company of 3 other rows"),
        (lambda x: (x + 1) / 2 if x.min() < 0 else x, IMAGE, IMAGE, Cause.COMPANY, " in company of 3 other rows"),
        (
            lambda x: x * len(np.unique(x, axis=0)) / len(x),
            X,
            Y,
            Cause.COMPANY,
            "filled up with copies of the last row",
        ),
        (
            lambda x: np.cross(x, np.ones(x.shape), axis=x.shape.index(3)),  # as torch.cross
            X,
            Y,
            Cause.COMPANY,
            "in a batch of 3 in another order",
        ),
        (lambda x: x * 2 if len(x) > 30 else x, X, Y, Cause.COMPANY, "in a batch of 32 that is filled up"),
        (
            lambda x: np.where(np.arange(len(x))[:, None] < 8, x, 0),  # as experts that take so many rows
            X,
            Y,
            Cause.COMPANY,
            "filled up with copies of the last row",
        ),
        (lambda x: x, SEQUENCE, ANOTHER, Cause.PADDING, "'y': shape [8] alone, shape [16] padded to length 16"),
        (
            lambda x: np.ones((len(x), len(x))),
            X,
            ANOTHER,
            Cause.COMPANY,
            "where their number differs, as that of boxes",
        ),
        (lambda x: x.sum((1, 2)) / x.shape[1], GRID, SCALAR, Cause.PADDING, "(axis 'lines', "),
        (lambda x: x.max(1), SEQUENCE, SCALAR, Cause.PADDING, " alone, 0 padded to length 16 (axis 'tokens', "),
        (lambda x: np.sort(x)[:, -3:].sum(1), LEAST, SCALAR, Cause.PADDING, "(axis 'tokens', its own length is 1)"),
    ],
)
def test_what_is_found(call, inputs, outputs, cause, message):
    found = check(call, [inputs], [outputs])
    assert found is not None
    assert found.cause is cause
    assert str(found).startswith(f"{cause.value}: output 'y': ")
    assert message in str(found)


@pytest.mark.parametrize("too_short", [np.nan, ValueError("kernel size 3")])
def test_a_row_of_length_1_need_not_be_valid(too_short):
    def first(x):
        if x.shape[1] > 1:
            return x[:, 0]
        if isinstance(too_short, Exception):
            raise too_short
        return np.full(len(x), too_short)

    assert check(first, [SEQUENCE], [SCALAR]) is None


# tolerances


@pytest.mark.parametrize(("precision", "passes", "fails"), [
     ("FP32", 5e-5, 1e-3), ("FP16", 5e-3, 5e-2), ("BF16", 3e-2, 0.2),
])  # fmt: skip
def test_rounding_is_tolerated_by_precision(precision, passes, fails):
    outputs = [spec("y", "FP64", 3)]

    def exact(size):
        return lambda x: np.array([1.0, 0, -20]) * np.ones((len(x), 1)) + size * 20 * (len(x) > 1)

    assert check(exact(passes), outputs=outputs, precision=precision) is None
    assert check(exact(fails), outputs=outputs, precision=precision) is not None


def test_the_rows_of_a_large_batch_are_not_copied_all_at_once():
    batch, row = np.ones((64, 3), np.float32), SampleRow((np.zeros(3, np.float32),))
    assert all(np.shares_memory(answer, batch) for (answer,) in by_row([Y], [batch], [row] * 64))


def test_bfloat16_outputs_are_read_from_their_bits():
    bits = spec("y", "BF16", 1)

    def call(x):
        return np.full((len(x), 1), 0x4000 if len(x) > 1 else 0x3F80, np.uint16)

    assert "1 alone, 2 in company" in str(check(call, outputs=[bits], precision="BF16"))


def labels(differ):
    """Integers; so many rows of four have another in company than alone, wherever they stand."""
    known = []

    def call(x):
        if len(x) == 1:
            known.append(x.tobytes())
        return np.array([known.index(row.tobytes()) < differ for row in x], np.int64) * (len(x) > 1)

    return call


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ('{"label": "a", "score": %.17g, "least": %.3e}', True),
        ("%.1f %.1f", False),
        ('{"score": %.17g, "least": %.3e, "rows": ROWS}', False),
        ('{"score": %.17g, "least": %.3e, "at": 1700000.5}', False),  # a larger number of another kind
    ],
)
def test_floats_in_texts_are_equal_but_for_rounding(text, passes):
    """Of a network whose scores leave as JSON: with more rows its products are rounded in another way."""

    def call(x):
        by = 1 + (1e-6 if passes or "ROWS" in text else 0.1) * (len(x) > 1)
        return np.array([(text % (0.7 * by, 3e-5 * by)).replace("ROWS", str(len(x))).encode() for _ in x], dtype=object)

    found = check(call, outputs=[TEXT], max_batch=4)
    assert (found is None) is passes, found


@pytest.mark.parametrize(("precision", "differ", "passes"), [
    ("EXACT", 0, True),   ("BF16", 1, True), ("BF16", 2, False),
])  # fmt: skip
def test_integers_are_equal_but_for_near_ties(precision, differ, passes):
    found = check(labels(differ), outputs=[LABEL], precision=precision, max_batch=4)
    assert (found is None) is passes
    if found is not None:
        assert f"'label': 0 alone, 1 in company of 3 other rows (the largest difference; {differ} of 4" in str(found)


def test_a_single_sample_is_run_beside_copies_of_itself():
    info = info_of([X], [Y], max_batch=8)
    row = SampleRow((np.float32([1, 2, 3]),))

    def run(rows, size):
        return [softmax(np.asarray(stack(info.inputs, rows, size)[0]), 0)]

    found = check_segments(whole_model(info, [row], run), TOLERANCES["FP32"], 8)
    assert "1 alone, 0.5 beside a copy of itself" in str(found)
