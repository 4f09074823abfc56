"""T(b, length) between, below and beyond the lengths measured."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.lengths import LengthTimes, any_length, rounded, time_at

TIMES = ((10, (10, 20)), (30, (30, 60)), (40, (35, 80)))


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 20), (10, 20), (11, 22), (20, 40), (30, 60), (35, 70), (40, 80), (80, 160)]
)
def test_time_by_length(length: int, expected: float) -> None:
    assert time_at(TIMES, 2, length) == pytest.approx(expected)


def test_time_beyond_the_largest_batch() -> None:
    assert time_at(TIMES, 4, 20) == pytest.approx(80)
    assert time_at(((8, (5,)),), 3, 8) == 15


class TestLengthTimes:
    def test_stages_add_up_and_are_made_monotone(self) -> None:
        """Three rows are faster as four; the other stage takes as long for any length."""
        times = LengthTimes([((10, (10, 20, 40, 24)),), any_length((1, 2, 3, 4))], 4, extra_ns=5)
        at = times.at(10)
        assert at.times == (16, 27, 33, 33)
        assert at.sizes == (1, 2, 4, 4)
        assert at.least == pytest.approx((16, 13.5, 11, 8.25))
        assert at.best == (1, 2, 3, 4)
        assert times.at(20).times[0] == 5 + 20 + 1

    def test_lengths_are_rounded_up_by_little(self) -> None:
        assert [rounded(length) for length in (0, 1, 63, 64, 65, 129, 1000)] == [0, 1, 63, 64, 66, 132, 1008]
        assert all(length <= rounded(length) <= length * 33 / 32 for length in range(1, 20_000, 7))
        assert len({rounded(length) for length in range(1, 1 << 14)}) < 400
