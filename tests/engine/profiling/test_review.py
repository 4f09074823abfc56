"""Tables are solved again when the curve has moved by more than its error, and seldom; contradiction needs evidence."""

from __future__ import annotations

import pytest

from app.engine.profiling.review import Review
from app.scheduler.estimates.latency import LiveTimes
from app.scheduler.estimates.profile import ModelProfile, linear

S = 1_000_000_000
KNOWN = ModelProfile(linear(7, 0.6, 8).batch_ns, errors=(0.02,) * 8)


def live(off: float, batches: int, size: int = 3) -> LiveTimes:
    """So many batches of each size took what was predicted, those of one were `off` from it."""
    found = LiveTimes(KNOWN.errors)
    for _ in range(batches):
        for one in range(1, 9):
            predicted = found.factors[one - 1]
            found.observe(one, (1 + off if one == size else 1) / predicted - 1)
    return found


def test_a_size_that_has_moved_is_solved_for_once() -> None:
    review, seen = Review(KNOWN, 0), live(-0.3, 200)
    assert review.corrected([seen], 9 * S) is None  # too soon
    corrected = review.corrected([seen], 11 * S)
    assert corrected is not None
    assert corrected.batch_ns[2] < 0.8 * KNOWN.batch_ns[2]
    assert corrected.errors == seen.errors()
    assert review.corrected([seen], 300 * S) is None


def test_however_the_curve_moves_solutions_are_ever_further_apart() -> None:
    review, moving = Review(KNOWN, 0), (live(0.4, 100), live(-0.3, 100))
    solved = [review.corrected([moving[second % 2]], second * S) is not None for second in range(6000)]
    assert 7 <= sum(solved) <= 10


def test_a_profile_is_contradicted_by_enough_batches_far_off() -> None:
    review = Review(KNOWN, 0)
    assert review.contradicted([live(-0.5, 100)])
    assert not review.contradicted([live(-0.5, 10)])
    assert not review.contradicted([live(-0.08, 100)])


def test_of_a_model_in_stages_all_stages_count() -> None:
    stages = (ModelProfile(KNOWN.batch_ns), ModelProfile(KNOWN.batch_ns))
    whole = ModelProfile(tuple(2 * time for time in KNOWN.batch_ns), stages=stages, errors=KNOWN.errors)
    corrected = Review(whole, 0).corrected([live(-0.4, 200), live(0.0, 200)], 61 * S)
    assert corrected is not None
    assert 0.75 < corrected.batch_ns[2] / whole.batch_ns[2] < 0.85
    assert corrected.stages[0].batch_ns[2] < 0.7 * stages[0].batch_ns[2]


def test_others_that_slow_a_batch_more_than_profiled_are_solved_for() -> None:
    """Also where the profile says nothing of units at once."""
    one = LiveTimes(KNOWN.errors)
    for _ in range(100):
        one.shared.observe(1.0, 0.0, 1.0)
        one.shared.observe(0.0, 1.0, 0.5)
    corrected = Review(KNOWN, 0, 2).corrected([one], 11 * S)
    assert corrected is not None
    assert corrected.times(2)[3] == pytest.approx(2 * KNOWN.batch_ns[3], rel=0.05)
    assert corrected.batch_ns[3] == pytest.approx(KNOWN.batch_ns[3], rel=0.02)
