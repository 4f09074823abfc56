"""Live batches correct each size, whatever the profile says, and not more than they are worth."""

from __future__ import annotations

import random

import pytest

from app.scheduler.estimates.latency import Latency
from app.scheduler.estimates.live import LiveTimes
from app.scheduler.types import Profile

TRUE = (5_000, 10_000, 14_000, 9_400, 10_000, 10_500)
WRONG = (8_000, 10_000, 14_000, 9_400, 27_000, 10_500)  # two sizes were measured in a noisy moment


def served(profile: Profile, batches: int, noise: float = 0.1, seed: int = 0, mood: float = 1.0) -> Latency:
    """Batches of all sizes have run; noise only adds, heavy-tailed."""
    draw, latency = random.Random(seed), Latency(profile)
    for _ in range(batches):
        size = draw.randint(1, len(TRUE))
        slow = 1 + noise * draw.expovariate(1) * (8 if draw.random() < 0.05 else 1)
        latency.observe(size, round(TRUE[size - 1] * slow * mood))
    return latency


def shape(latency: Latency) -> list[float]:
    """Predictions over the truth, over their mean."""
    ratios = [latency.predict(size) / true for size, true in enumerate(TRUE, 1)]
    return [ratio * len(ratios) / sum(ratios) for ratio in ratios]


@pytest.mark.parametrize("mood", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_profile_that_is_wrong_at_two_sizes_is_corrected_there(seed: int, mood: float) -> None:
    latency = served(Profile(WRONG, errors=(0.03,) * 6), 6 * 200, seed=seed, mood=mood)
    assert shape(latency) == pytest.approx([1.0] * 6, abs=0.06)
    assert latency.live is not None
    assert max(latency.live.errors()) < 0.02


def test_a_profile_without_errors_is_exact_and_never_corrected() -> None:
    latency = served(Profile(WRONG), 500)
    assert latency.live is None
    assert latency.predict(5) == int(WRONG[4] * latency.scale)


def test_one_batch_of_a_well_known_size_moves_it_little_and_one_alone_is_no_evidence() -> None:
    live = LiveTimes((0.01, 0.25))
    before = live.errors()
    live.observe(1, 5.0)
    assert live.factors[0] < 1.05
    live.observe(2, 0.0)
    assert live.errors()[1] == pytest.approx(before[1], rel=0.05)


def test_factors_do_not_drift_where_noise_has_a_long_tail() -> None:
    """Bounding makes all deviations low on average; factor and scale must not run apart because of it."""
    latency = served(Profile(TRUE, errors=(0.02,) * 6), 20_000, noise=0.5)
    assert latency.live is not None
    assert all(0.7 < factor < 1.4 for factor in latency.live.factors)
    assert shape(latency) == pytest.approx([1.0] * 6, abs=0.1)


def test_beyond_the_table_nothing_is_learnt() -> None:
    live = LiveTimes((0.1,))
    live.observe(9, 0.5)
    assert (live.factors, live.seen) == ([1.0], [0])
