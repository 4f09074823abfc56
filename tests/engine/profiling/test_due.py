"""When tables are solved again: while batches run, ever more seldom, and once something is known."""

from __future__ import annotations

import pytest

from app.engine.profiling.tables import Due
from app.scheduler.estimates.curve import Curve
from app.scheduler.estimates.profile import Profile

S = 1_000_000_000
KNOWN = (0.05, 0.3)


@pytest.mark.parametrize(("workers", "first"), [(1, 1), (2, 10)])
def test_after_a_while_and_only_if_batches_have_run(workers: int, first: int) -> None:
    due, curve = Due(workers), Curve(Profile((1_000, 2_000), errors=KNOWN))
    assert due.begin([curve], KNOWN, 0)
    assert not due.again([curve], first * S)  # idle
    curve.observe(1, 1_000)
    assert not due.again([curve], first * S - 1)
    assert due.again([curve], first * S)
    assert due.begin([curve], KNOWN, first * S)
    curve.observe(1, 1_000)
    assert not due.again([curve], first * S * 5 // 2 - 1)  # half as long again
    assert due.again([curve], first * S * 5 // 2)


def test_batches_of_any_stage_count() -> None:
    due, curves = Due(), [Curve(Profile((1_000,), errors=(0.05,))) for _ in range(2)]
    assert due.begin(curves, (0.05,), 0)
    curves[1].observe(1, 1_000)
    assert due.again(curves, S)


def test_not_while_no_size_is_known_and_then_at_once() -> None:
    due, curve = Due(), Curve(Profile((1_000, 2_000), errors=(0.25, 0.3)))
    assert not due.begin([curve], (0.25, 0.3), 0)
    curve.observe(1, 1_000)
    assert due.again([curve], 1)
    assert due.begin([curve], KNOWN, 1)


def test_an_exact_profile_needs_no_other_tables() -> None:
    due, curve = Due(), Curve(Profile((1_000, 2_000)))
    assert due.begin([curve], (), 0)
    curve.observe(1, 1_500)
    assert not due.again([curve], 1_000 * S)
