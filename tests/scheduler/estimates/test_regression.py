"""The line of batch times: weighted least squares with forgetting, sound when the batch size never varies."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from tiers import some

from app.scheduler.estimates.batch_monitor import Regression
from app.scheduler.estimates.profile import linear

MS = 1_000_000
FORGET, PRIOR, ANCHOR = (
    0.98,
    20.0,
    0.25,
)  # as the module's text says: 50 batches, 20 for the profile, a quarter of a row
Floats = NDArray[np.float64]
PROFILE = linear(3, 0.35, 32).batch_ns


def line_of(regression: Regression) -> tuple[float, float]:
    """alpha and beta in milliseconds."""
    return regression.alpha / MS, regression.beta / MS


def noisy(fixed_ms: float, row_ms: float, count: int, *, cv: float = 0.05, seed: int = 1) -> Iterable[tuple[int, int]]:
    """Batches of 1 to 32 rows and their times, in error by a few per cent each."""
    generator = random.Random(seed)
    for _ in range(count):
        size = generator.randint(1, 32)
        yield size, round((fixed_ms + row_ms * size) * MS * generator.gauss(1, cv))


def least_squares(
    seen: list[tuple[int, int]], profile: tuple[int, ...] = (), slope: float = 0.0
) -> tuple[float, float]:
    """The same line by numpy: every batch a weighted equation, and one that draws the slope to that of the profile."""
    x, y, share = weighted(seen, profile)
    left = np.vstack([np.stack([np.ones_like(x), x - share @ x], axis=1) * np.sqrt(share)[:, None], [0, ANCHOR**0.5]])
    right = np.r_[y * np.sqrt(share), ANCHOR**0.5 * slope]
    centre, beta = np.linalg.lstsq(left, right, rcond=None)[0]
    return float(centre - beta * (share @ x)), float(beta)


def weighted(seen: list[tuple[int, int]], profile: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """Rows, nanoseconds and share of the weight of each batch, those that the profile counts as first."""
    weights = [PRIOR / len(profile) * FORGET ** len(seen) for _ in profile]
    weights += [FORGET ** (len(seen) - 1 - i) for i in range(len(seen))]
    x, y = np.array([*enumerate(profile, 1), *seen], float).T
    return x, y, np.array(weights) / sum(weights)


def test_nothing_seen_is_nothing_known() -> None:
    regression = Regression()
    assert not regression.known
    assert (regression.alpha, regression.beta, regression.residual, regression.predict(8)) == (0, 0, 0, 0)


@pytest.mark.parametrize(("fixed_ms", "row_ms"), [(3, 0.35), (7, 0.6), (0.2, 3), (4, 0)])
def test_line_of_a_linear_profile(fixed_ms: float, row_ms: float) -> None:
    regression = Regression(linear(fixed_ms, row_ms, 32).batch_ns)
    assert regression.known
    assert line_of(regression) == pytest.approx((fixed_ms, row_ms), abs=1e-6)
    assert regression.residual == pytest.approx(0, abs=1)
    assert regression.predict(100) == pytest.approx((fixed_ms + 100 * row_ms) * MS)


def test_line_of_a_bent_profile_is_that_of_least_squares() -> None:
    times = np.array([4.6, 9.5, 14.0, 10.0, 10.4, 10.9, 11.3, 11.7]) * MS
    beta, alpha = np.polyfit(np.arange(1, 9), times, 1)
    regression = Regression(times.astype(int).tolist())
    assert (regression.alpha, regression.beta) == pytest.approx((alpha, beta), rel=1e-6)
    residual = np.sqrt(np.mean((times - alpha - beta * np.arange(1, 9)) ** 2))
    assert regression.residual == pytest.approx(residual, rel=1e-6)


def test_profile_of_one_size_has_no_slope() -> None:
    regression = Regression((5 * MS,))
    assert line_of(regression) == (5, 0)


def test_profile_that_falls_has_no_slope_below_zero() -> None:
    regression = Regression((9 * MS, 8 * MS, 7 * MS))
    assert line_of(regression) == pytest.approx((8, 0))


@pytest.mark.parametrize("profile", [(), PROFILE], ids=["no-profile", "profile"])
@pytest.mark.parametrize("count", some([60, 1, 7, 400]))
def test_batches_are_fitted_as_numpy_does(profile: tuple[int, ...], count: int) -> None:
    """Times within twice the line, so that none is clipped: 5 ms give or take a fifth, whatever the size."""
    generator = random.Random(count)
    seen = [(generator.randint(1, 32), round(generator.uniform(4, 6) * MS)) for _ in range(count)]
    regression = Regression(profile)
    for size, time in seen:
        regression.observe(size, time)
    slope = 0.35 * MS if profile else 0.0
    if profile:  # the profile's slope is scaled to the level that is seen
        x, y, share = weighted(seen, profile)
        slope *= (share @ y) / (3 * MS + slope * (share @ x))
    alpha, beta = least_squares(seen, profile, slope)
    assert regression.beta == pytest.approx(max(0.0, beta), rel=1e-6, abs=1e-3)
    if beta > 0:
        assert regression.alpha == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize("profile", [(), PROFILE, linear(30, 0, 32).batch_ns], ids=["none", "true", "wrong"])
@pytest.mark.parametrize(("fixed_ms", "row_ms"), some([(3, 0.35), (7, 0.6), (0.2, 3)]))
def test_line_is_found_in_noise(profile: tuple[int, ...], fixed_ms: float, row_ms: float) -> None:
    """400 batches of 1 to 32 rows, each in error by 5 %: what is predicted is right within 5 % over all sizes."""
    regression = Regression(profile)
    for size, time in noisy(fixed_ms, row_ms, 400):
        regression.observe(size, time)
    for size in (4, 8, 16, 32):
        assert regression.predict(size) == pytest.approx((fixed_ms + row_ms * size) * MS, rel=0.05)
    assert regression.beta == pytest.approx(row_ms * MS, rel=0.07)
    mean = (fixed_ms + row_ms * 16.5) * MS
    assert 0.02 * mean < regression.residual < 0.1 * mean


@pytest.mark.parametrize("size", some([8, 1, 32, 200]))
@pytest.mark.parametrize("level", some([3, 1, 0.5], 2))
def test_one_size_for_a_thousand_batches_keeps_the_slope_scaled_to_the_level(size: int, level: float) -> None:
    """Nothing but the level was seen: the line is the profile's, times the level."""
    regression = Regression(PROFILE)
    for _ in range(1_000):
        regression.observe(size, round(level * (3 + 0.35 * size) * MS))
    assert line_of(regression) == pytest.approx((level * 3, level * 0.35), rel=1e-3)
    assert regression.predict(4) == pytest.approx(level * 4.4 * MS, rel=1e-3)


def test_one_size_in_noise_keeps_the_slope_too() -> None:
    regression, generator = Regression(PROFILE), random.Random(3)
    for _ in range(1_000):
        regression.observe(8, round(5.8 * MS * generator.gauss(1, 0.1)))
    assert regression.beta == pytest.approx(0.35 * MS, rel=0.06)


def test_one_size_without_a_profile_has_no_slope() -> None:
    regression, generator = Regression(), random.Random(4)
    for _ in range(1_000):
        regression.observe(8, round(5.8 * MS * generator.gauss(1, 0.1)))
    assert regression.beta == pytest.approx(0, abs=1e-6)
    assert regression.alpha == pytest.approx(5.8 * MS, rel=0.05)
    assert regression.predict(1) == regression.predict(32)


@pytest.mark.parametrize("size", [1, 32])
def test_outlier_of_a_hundred_times_moves_the_line_little(size: int) -> None:
    """It counts as twice the prediction, and as one batch in about fifty: a tenth of the longest batch, anywhere."""
    regression = Regression(PROFILE)
    for seen, time in noisy(3, 0.35, 300):
        regression.observe(seen, time)
    before = [regression.predict(rows) for rows in (1, 8, 32)]
    regression.observe(size, round(100 * regression.predict(size)))
    assert [regression.predict(rows) for rows in (1, 8, 32)] == pytest.approx(before, abs=1.42 * MS)
    for seen, time in noisy(3, 0.35, 100, seed=2):
        regression.observe(seen, time)
    assert [regression.predict(rows) for rows in (8, 32)] == pytest.approx([5.8 * MS, 14.2 * MS], rel=0.05)


@pytest.mark.parametrize("factor", some([0.25, 3, 10]))
def test_old_regime_is_forgotten_within_two_hundred_batches(factor: float) -> None:
    regression = Regression(PROFILE)
    for size, time in noisy(3, 0.35, 500):
        regression.observe(size, time)
    for size, time in noisy(factor * 3, factor * 0.35, 200, seed=2):
        regression.observe(size, time)
    for size in (4, 16, 32):
        assert regression.predict(size) == pytest.approx(factor * (3 + 0.35 * size) * MS, rel=0.08)


@pytest.mark.parametrize("compute_ns", [0, -5])
def test_no_time_is_no_observation(compute_ns: int) -> None:
    regression = Regression(PROFILE)
    before = (regression.alpha, regression.beta)
    regression.observe(4, compute_ns)
    assert (regression.alpha, regression.beta) == before


def test_prediction_is_never_below_a_nanosecond() -> None:
    """A curve that rises late has a line that crosses 0 before the first row."""
    regression = Regression((1, 1, 1, 1, 1_000_000))
    assert regression.alpha < 0
    assert regression.predict(1) == 1.0


@pytest.mark.parametrize(
    ("profile", "size"),
    [((1, 4, 9, 16), 1), (tuple(4 + 3 * max(0, b - 8) for b in range(1, 33)), 5), ((1, 8, 27, 64), 1)],
)
def test_one_size_where_the_line_of_a_convex_profile_crosses_zero_invents_no_slope(
    profile: tuple[int, ...], size: int
) -> None:
    """Drawn to the slope of the profile, never beyond it, however long nothing but the level is seen."""
    regression = Regression([time * MS for time in profile])
    steepest = max(later - earlier for earlier, later in pairwise(profile)) * MS
    for _ in range(3_000):
        regression.observe(size, profile[size - 1] * MS)
    assert 0 <= regression.beta <= steepest
    assert regression.predict(size) == pytest.approx(profile[size - 1] * MS, rel=0.01)
