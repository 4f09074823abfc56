"""Predictions: the measured table times one scale, the corrections of live batches, and the hand-over."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from app.scheduler.estimates.latency import Handover, Latency, LiveTimes
from app.scheduler.estimates.shared_slowdown import SharedSlowdown
from app.scheduler.types import Profile

US, MS = 1_000, 1_000_000
TABLE = (100, 150, 300, 200)  # three rows take longer than four
AT_ONCE = Profile(TABLE, ((160, 240, 480, 320), (220, 330, 660, 440)))
BY_LENGTH = Profile((100, 200), ((150, 300),), ((10, (40, 80)), (30, (100, 200))))
HANDED = Profile((100, 150), handover_ns=30)


@pytest.mark.parametrize(
    ("profile", "given", "expected"),
    [
        (Profile(TABLE), {"size": 1}, 100),
        (Profile(TABLE), {"size": 3}, 300),
        (Profile(TABLE), {"size": 6}, 300),  # beyond the table its last share of a row
        (AT_ONCE, {"size": 1, "running": 2}, 160),
        (AT_ONCE, {"size": 2, "running": 3}, 330),
        (AT_ONCE, {"size": 2, "running": 9}, 330),  # as the most units that were measured
        (AT_ONCE, {"size": 8, "running": 2}, 640),
        *((BY_LENGTH, {"size": 2, "length": at}, ns) for at, ns in ((0, 200), (10, 80), (20, 140), (60, 400))),
        (BY_LENGTH, {"size": 4, "length": 10}, 160),
        (BY_LENGTH, {"size": 2, "running": 2, "length": 10}, 120),  # other units slow any length alike
        (Profile((100, 200)), {"size": 2, "length": 10}, 200),
        *((HANDED, {"size": size}, ns) for size, ns in ((1, 130), (2, 180), (4, 330))),
        *((HANDED, {"size": 1, "lead_ns": lead}, ns) for lead, ns in ((10, 120), (30, 100), (70, 100))),
        (Profile(handover_ns=30), {"size": 1}, 0),  # a driver reads 0 as: not known
    ],
)
def test_predictions_of_the_profile(profile: Profile, given: dict[str, int], expected: int) -> None:
    assert Latency(profile).predict(**given) == expected


class TestScale:
    def latency(self, scale: float = 1.0, profile: Profile | None = None) -> Latency:
        latency = Latency(profile or Profile(TABLE))
        latency.scale = scale
        return latency

    @pytest.mark.parametrize(
        ("profile", "observation", "moved"),
        [
            pytest.param(Profile(TABLE), (1, 10**12), 0.05 * 3, id="an-outlier-little"),
            pytest.param(Profile(TABLE), (1, 0), 0, id="no-time"),
            pytest.param(Profile(TABLE), (1, -5), 0, id="less-than-no-time"),
            pytest.param(Profile((0, 10)), (1, 10), 0, id="a-table-of-nothing"),
            pytest.param(Profile(), (1, 1000), 0, id="nothing-known"),
            pytest.param(AT_ONCE, (2, 240, 2), 0, id="two-at-once-as-measured"),
            pytest.param(AT_ONCE, (2, 330, 7), 0, id="many-at-once-as-measured"),
            pytest.param(AT_ONCE, (2, 240, 1), 0.05 * 0.6, id="alone-as-long-as-two"),
            pytest.param(BY_LENGTH, (2, 80, 1, 10), 0, id="short-rows-as-measured"),
        ],
    )
    def test_one_observation(self, profile: Profile, observation: tuple[int, ...], moved: float) -> None:
        latency = self.latency(profile=profile)
        latency.observe(*observation)
        assert latency.scale == pytest.approx(1 + moved)

    def test_it_returns_to_the_profile_while_nothing_runs(self) -> None:
        """A tenth of the way for each empty window: else a scale that has every call refused would stay for ever."""
        latency = self.latency(2.0, Profile(TABLE, handover_ns=0))
        latency.observe(2, 300)
        latency.handover.observe(100 * US)
        latency.tick()  # it ran in this window
        assert (latency.scale, latency.handover.ns) == (pytest.approx(2.0), 5_000)
        latency.tick()
        assert (latency.scale, latency.handover.ns) == (pytest.approx(1.9), 4_500)

    def test_what_is_planned_for_any_rows_follows_the_rows_that_arrive(self) -> None:
        latency = Latency(BY_LENGTH)
        for _ in range(200):
            latency.observe(2, 80, 1, 10)
        assert (latency.scale, latency.planned) == (pytest.approx(1.0), pytest.approx(0.4, rel=1e-3))
        assert (latency.predict(2), latency.predict(2, 1, 10), latency.slowdown(2, 1)) == (80, 80, latency.planned)
        for _ in range(60):
            latency.tick()
        assert latency.planned == pytest.approx(1.0, abs=0.01)

    def test_slowdown_is_of_computing_and_hand_over(self) -> None:
        latency = self.latency(2.0, Profile((100, 150), handover_ns=50))
        assert latency.predict(1) == 250
        assert latency.slowdown(2, 1, 0) == pytest.approx(350 / 200)
        assert latency.slowdown(2, 1, 40) == pytest.approx(310 / 160)
        assert latency.slowdown(2, 1, 50) == 2.0  # to the last place: decisions of the past hang on it


class TestHandover:
    @pytest.mark.parametrize(
        ("profiled", "observed", "expected"),
        [
            pytest.param(None, [300 * US] * 100, 0, id="nothing-is-learnt-where-there-is-none"),
            pytest.param(140 * US, [], 140 * US, id="begins-as-profiled"),
            pytest.param(140 * US, [140 * US], 140 * US, id="as-predicted"),
            pytest.param(140 * US, [10**10], 147 * US, id="late-once"),
            pytest.param(140 * US, [-(10**10)], 133 * US, id="negative-once"),
            pytest.param(0, [-50 * US], 0, id="never-less-than-nothing"),
            *(pytest.param(start * US, [400 * US] * 400, 400 * US, id=f"from-{start}") for start in (0, 140, 2_000)),
        ],
    )
    def test_it_follows_what_is_observed(self, profiled: int | None, observed: list[int], expected: int) -> None:
        handover = Handover(profiled)
        for spent_ns in observed:
            handover.observe(spent_ns)
        assert handover.ns == pytest.approx(expected, rel=0.01)
        assert handover.profiled_ns == (profiled or 0)


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


class TestLiveTimes:
    @pytest.mark.parametrize(("seed", "mood"), [(0, 1.0), (1, 3.0)])
    def test_a_profile_that_is_wrong_at_two_sizes_is_corrected_there(self, seed: int, mood: float) -> None:
        latency = served(Profile(WRONG, errors=(0.03,) * 6), 6 * 200, seed=seed, mood=mood)
        assert shape(latency) == pytest.approx([1.0] * 6, abs=0.06)
        assert latency.live is not None
        assert max(latency.live.errors()) < 0.02

    def test_a_profile_without_errors_is_exact_and_never_corrected(self) -> None:
        latency = served(Profile(WRONG), 500)
        assert latency.live is None
        assert latency.predict(5) == int(WRONG[4] * latency.scale)

    def test_one_batch_of_a_well_known_size_moves_it_little_and_one_alone_is_no_evidence(self) -> None:
        live = LiveTimes((0.01, 0.25))
        before = live.errors()
        live.observe(1, 5.0)
        assert live.factors[0] < 1.05
        live.observe(2, 0.0)
        assert live.errors()[1] == pytest.approx(before[1], rel=0.05)
        live.observe(9, 0.5)  # beyond the table
        assert live.seen == [1, 1]


class TestSharedSlowdown:
    """Batches that ran beside others for some of their time say what others cost."""

    @staticmethod
    def served(profiled: float, true: float, shares: Sequence[float], mood: float = 1.0, batches: int = 400) -> Latency:
        """Batches of 1 ms alone; two at once are `true` times as slow, `profiled` by the profile."""
        latency = Latency(Profile((MS,), ((round(profiled * MS),),), errors=(0.02,)))
        noise = random.Random(7)
        for number in range(batches):
            share = shares[number % len(shares)]  # of its time, beside another
            time = mood * MS / (1 - share + share / true) * noise.uniform(0.9, 1.1)
            latency.observe(1, round(time), 1, others=share)
        return latency

    @pytest.mark.parametrize(
        ("profiled", "true"),
        [
            pytest.param(1.0, 2.5, id="slower-than-profiled"),
            pytest.param(2.5, 1.0, id="less-slow"),
            pytest.param(1.5, 1.5, id="as-profiled"),
        ],
    )
    def test_what_others_cost_is_found(self, profiled: float, true: float) -> None:
        latency = self.served(profiled, true, (0.0, 0.3, 0.6, 1.0), mood=1.2)
        assert latency.live is not None
        assert profiled * latency.live.shared.factor == pytest.approx(true, rel=0.15)
        assert latency.predict(1) == pytest.approx(1.2 * MS, rel=0.08)
        assert latency.predict(1, 2) == pytest.approx(1.2 * MS * true, rel=0.1)

    def test_where_none_is_alone_nothing_is_learnt(self) -> None:
        """They may all be slower because of what the server does beside them."""
        latency = self.served(1.0, 2.0, (1.0,))
        assert latency.live is not None
        assert latency.live.shared.factor == 1
        assert latency.predict(1, 2) == pytest.approx(2 * MS, rel=0.05)

    def test_a_batch_alone_is_asked_for_after_many_in_company(self) -> None:
        shared = SharedSlowdown()
        for _ in range(31):
            shared.observe(0.2, 0.8, 0.5)
        assert not shared.crowded
        shared.observe(0.2, 0.8, 0.5)
        assert shared.crowded
        shared.observe(0.5, 0.5, 0.8)
        assert not shared.crowded
        for _ in range(63):  # seldom more and more: each costs a worker's time
            shared.observe(0.2, 0.8, 0.5)
        assert not shared.crowded
        shared.observe(0.2, 0.8, 0.5)
        assert shared.crowded

    def test_of_several_others_their_mean_number_counts(self) -> None:
        """Three at once are profiled twice as slow, and are three times so."""
        latency = Latency(Profile((MS,), ((MS,), (2 * MS,)), errors=(0.02,)))
        for _ in range(400):
            latency.observe(1, MS, 1, others=0.0)
            latency.observe(1, 3 * MS, 3, others=2.0)
        assert latency.predict(1, 3) == pytest.approx(3 * MS, rel=0.08)
