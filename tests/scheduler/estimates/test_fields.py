"""Values between those given. What the fields refuse is told with the profile, in `test_profile`."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.fields import interpolate, times


def test_interpolation_keeps_what_is_known_and_stays_within_it() -> None:
    known = {1: 10, 3: 20, 7: 0}
    assert interpolate(known, range(1, 8)) == [10, 15, 20, 15, 10, 5, 0]
    assert interpolate({4: 9}, [4, 4]) == [9, 9]
    for beyond in (0, 8):
        with pytest.raises(ValueError, match=f"expected points from 1 to 7, got {beyond}"):
            interpolate(known, [beyond])


def test_times_may_be_nothing_only_where_that_is_said() -> None:
    assert times({"1": 0, "2": 1}, "key", None, 0) == (0, 1_000_000)
    with pytest.raises(ValueError, match=r"key.1: expected milliseconds above 0"):
        times({"1": 0, "2": 1}, "key", None)
