"""Invariant: a value that is none of an input's categories is a 400 that names both, unless it may be missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.contract import TensorSpec
from app.errors import BadRequest
from app.values.ranges import check_range

CITY = TensorSpec("city", "BYTES", (), (), (), categories=(b"Bonn", "Köln".encode()))
TENTH = TensorSpec("tenth", "FP32", (), (), (), categories=(0.1, 2))


def column(*values):
    return np.array(values, object)


@pytest.mark.parametrize(
    ("spec", "known", "unknown", "message"),
    [
        (CITY, column(b"Bonn", "Köln".encode()), column(b"Bonn", b"Rom"), "'city': .* 'Bonn', 'Köln', got 'Rom'"),
        (CITY, column(b"Bonn"), column(b""), "got ''"),
        (replace(CITY, missing=True), column(b""), column(b"\xff"), "got '\ufffd'"),
        (TENTH, np.array([0.1, 2], "<f4"), np.array([0.3], "<f4"), r"'tenth': expected one of 0.1, 2, got 0.3"),
        (replace(TENTH, missing=True), np.array([np.nan], "<f4"), np.array([3], "<f4"), "got 3.0"),
        (replace(CITY, categories=tuple(b"%d" % n for n in range(25))), column(b"7"), column(b"x"), "'19' and 5 more"),
    ],
)
def test_categories(spec, known, unknown, message):
    check_range(spec, known)
    with pytest.raises(BadRequest, match=f"^input .*{message}"):
        check_range(spec, unknown)
    if spec.datatype == "FP32":
        check_range(spec, memoryview(known.tobytes()))
        with pytest.raises(BadRequest, match=message):
            check_range(spec, memoryview(unknown.tobytes()))
