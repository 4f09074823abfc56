"""Evidence by point, and the profile that follows of it."""

from __future__ import annotations

import pytest

from app.engine.profiling.idle import points
from app.scheduler.estimates.evidence import IDLE, WARM_UP, Evidence, Point, UnitTime
from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse, to_dict
from planner.profile_times import linear

MS = 1_000_000
KNOWN = Profile((MS, 2 * MS, 3 * MS, 4 * MS), errors=(0.25,) * 4)


def took(evidence: Evidence, point: Point, *times: int) -> None:
    for ns in times:
        evidence.add(point, UnitTime(ns), IDLE)


def test_profile_of_what_was_timed() -> None:
    evidence = Evidence(KNOWN)
    for point in points([1, 2, 4], [2]):
        took(evidence, point, *[MS * point.units * point.size] * 5)
    profile = evidence.profile(note="kept")
    assert profile.batch_ns == (MS, 2 * MS, 3 * MS, 4 * MS)
    assert profile.concurrency_ns == {2: (2 * MS, 4 * MS, 6 * MS, 8 * MS)}
    assert profile.extra["note"] == "kept"
    assert profile.extra["repeats"] == {"1": 5, "2": 5, "4": 5}
    assert profile.errors[0] < 0.05 < profile.errors[2]


def test_one_slow_batch_of_several_moves_a_size_little() -> None:
    evidence = Evidence(KNOWN)
    for point in points([1, 2, 3, 4]):
        took(evidence, point, *[KNOWN.batch_ns[point.size - 1]] * 3)
    took(evidence, Point(1, 3), 30 * MS)
    assert evidence.profile().batch_ns[2] < 3.3 * MS


def test_of_one_run_each_no_size_departs_from_the_curve() -> None:
    """Their error says so, whatever was expected before."""
    evidence = Evidence(linear(1, 0.1, 32))
    for size in range(1, 33):
        evidence.add(Point(1, size), UnitTime((9 if size == 20 else 1) * MS * (7 + size)), WARM_UP)
    profile = evidence.profile()
    assert profile.batch_ns == pytest.approx([MS * (7 + size) for size in range(1, 33)], rel=0.01)
    assert profile.errors == pytest.approx([0.26] * 32, abs=0.02)


def test_profile_by_length_and_stage() -> None:
    """Beyond what was timed at a length, its curve goes on as that of the rows as they are."""
    evidence = Evidence(linear(0, 16, 4))
    for point in (*points([1, 2, 4]), *points([1, 2, 4], lengths=[8, 32])):
        if point.size < 4 or point.length < 32:
            ns = MS * point.size * (point.length or 16)
            for _ in range(2):
                evidence.add(point, UnitTime(ns, (ns // 4, ns - ns // 4)), IDLE)
    profile = evidence.profile(length=16)
    assert profile.by_length == tuple((n, (n * MS, 2 * n * MS, 3 * n * MS, 4 * n * MS)) for n in (8, 16, 32))
    first, second = profile.stages
    assert first.by_length[2] == (32, (8 * MS, 16 * MS, 24 * MS, 32 * MS))
    assert second.batch_ns == (12 * MS, 24 * MS, 36 * MS, 48 * MS)
    assert parse(to_dict(profile)) == profile


def test_steps_of_a_recurrent_model() -> None:
    """Their times are a stage's that repeats, whatever the length; those of a decoder go by what it reads again."""
    evidence = Evidence(linear(16, 0, 2))
    for point in (*points([1, 2]), *points([1, 2], lengths=[8])):
        evidence.add(point, UnitTime(16 * MS, (MS,)), IDLE)
    (step,) = evidence.profile(16, cell=True).stages
    assert (step.cell, step.by_length, step.batch_ns) == (True, (), (MS, MS))
    (text,) = evidence.profile(16, cell=True, written=50).stages
    assert [length for length, _ in text.by_length] == [8 + 50, 16 + 50]


def test_without_a_time_of_one_row_there_is_no_profile() -> None:
    evidence = Evidence(KNOWN)
    took(evidence, Point(1, 2), MS)
    with pytest.raises(ValueError, match="expected a time of 1 row"):
        evidence.profile()
