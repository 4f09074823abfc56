"""T(b, length) between, below and beyond the lengths measured."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.lengths import time_at

TIMES = ((10, (10, 20)), (30, (30, 60)), (40, (35, 80)))


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 20), (10, 20), (11, 22), (20, 40), (30, 60), (35, 70), (40, 80), (80, 160)]
)
def test_time_by_length(length: int, expected: float) -> None:
    assert time_at(TIMES, 2, length) == pytest.approx(expected)


def test_time_beyond_the_largest_batch() -> None:
    assert time_at(TIMES, 4, 20) == pytest.approx(80)
    assert time_at(((8, (5,)),), 3, 8) == 15
