"""Units that are handed over ahead of time."""

from __future__ import annotations

from experiments.stages import ahead

# Handing units over ahead of time: all ways get the same arrivals.


def test_a_unit_pushed_within_the_time_is_near_the_better_way() -> None:
    """On a curve with a large fixed part early units are costly; the launch is hidden all the same."""
    found = ahead.cell(("7 + 0.6 b", 0.6, 1, 4000))
    (depth_1,), (at_once,), (within,) = found["depth_1"], found["at_once"], found["ahead"]
    assert at_once > 1.3 * depth_1
    assert within < depth_1  # by less than the launch of each unit
    assert within > depth_1 - 2 * ahead.LAUNCH_NS / 1e6
