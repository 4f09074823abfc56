"""Predictions of a curve, what it learns from batches, and the hand-over."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from app.scheduler.estimates.curve import STEADY, Curve, Handover
from app.scheduler.estimates.profile import Profile

US, MS = 1_000, 1_000_000
TABLE = (100, 150, 300, 200)  # three rows take longer than four
AT_ONCE = Profile(TABLE, {2: (160, 240, 480, 320), 3: (220, 330, 660, 440)})
BY_LENGTH = Profile((100, 200), {2: (150, 300)}, ((10, (40, 80)), (30, (100, 200))))
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
    assert Curve(profile, profile.most_at_once).predict(**given) == expected


def served(
    curve: Curve, times: Sequence[float], batches: int, noise: float = 0.1, seed: int = 0, spikes: float = 0.02
) -> Curve:
    """Batches of all sizes have run; now and then one takes four times as long."""
    draw = random.Random(seed)
    for number in range(batches):
        size = draw.randint(1, len(times))
        slow = draw.gammavariate(noise**-2, noise**2) * (4 if draw.random() < spikes else 1)
        curve.observe(size, round(times[size - 1] * slow))
        if not number % 40:
            curve.tick()
    return curve


def off(curve: Curve, true: Sequence[float]) -> float:
    """The largest distance of a size from the truth, as a share, when what all have in common is taken out."""
    ratios = [ns / one for ns, one in zip(curve.learned().batch_ns, true, strict=True)]
    common = sum(ratios) / len(ratios)
    return max(abs(ratio / common - 1) for ratio in ratios)


TRUE = tuple(round(ms * MS) for ms in (4.7, 9.7, 14.2, 9.4, 10.0, 10.6, 11.2, 11.8))
WRONG = (8 * MS, *TRUE[1:4], 27 * MS, *TRUE[5:])  # two sizes were measured in a noisy moment


class TestSizes:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(("noise", "batches", "most"), [(0.03, 400, 0.03), (0.15, 1_600, 0.05), (0.3, 3_200, 0.1)])
    def test_what_was_known_wrongly_is_learned_from_any_batches(self, noise, batches, most, seed) -> None:
        curve = served(Curve(Profile(WRONG, errors=(0.25,) * 8)), TRUE, batches, noise, seed)
        assert off(curve, TRUE) <= most
        assert max(curve.errors()) <= most

    def test_what_was_thought_to_be_known_well_is_learned_again(self) -> None:
        """Three batches that are far off, in a row and apart, cannot be noise."""
        curve = served(Curve(Profile(WRONG, errors=(0.01,) * 8)), TRUE, 1_600, 0.05)
        assert off(curve, TRUE) <= 0.08

    def test_what_is_off_where_one_size_runs_is_the_speed(self) -> None:
        """Else larger sizes, which have not run, would look faster, and the only row would be padded."""
        curve = Curve(Profile((20 * US,) * 8, errors=(0.26,) * 8))
        for _ in range(100):
            curve.observe(1, 150 * US)
        assert curve.predict(1) == pytest.approx(150 * US, rel=0.1)
        assert curve.predict(2) == pytest.approx(curve.predict(1), rel=0.2)

    def test_what_is_fast_where_small_sizes_run_was_measured_too_slow(self) -> None:
        """Else larger sizes, which have not run, would look faster than they are."""
        curve = Curve(Profile((*(2 * ns for ns in TRUE[:2]), *TRUE[2:]), errors=(0.25,) * 8))
        for number in range(100):
            curve.observe(1 + number % 2, TRUE[number % 2])
        assert curve.predict(1) == pytest.approx(TRUE[0], rel=0.05)
        assert curve.predict(8) == pytest.approx(TRUE[7], rel=0.2)

    def test_a_spike_moves_a_known_size_little(self) -> None:
        curve = served(Curve(Profile(TRUE, errors=(0.02,) * 8)), TRUE, 800, 0.05, spikes=0)
        before = curve.learned().batch_ns[2]
        curve.observe(3, 10 * TRUE[2])
        assert curve.learned().batch_ns[2] == pytest.approx(before, rel=0.01)

    def test_an_exact_profile_is_never_corrected(self) -> None:
        curve = served(Curve(profile := Profile(WRONG)), TRUE, 500)
        assert curve.learned() == profile
        assert (curve.error(3), curve.errors(), curve.corrections) == (0.0, (), 0)

    @pytest.mark.parametrize("given", [(1, 0), (1, -5), (9, 100)])
    def test_what_says_nothing_of_a_size_changes_none(self, given: tuple[int, int]) -> None:
        curve = Curve(Profile(TRUE, errors=(0.1,) * 8))
        curve.observe(*given)
        assert curve.learned().batch_ns == TRUE

    def test_a_trusted_batch_counts_as_several(self) -> None:
        errors = []
        for trust in (0.25, 1.0, 4.0):
            curve = Curve(Profile(TRUE, errors=(0.25,) * 8), doubt=STEADY)
            curve.observe(1, TRUE[0], trust=trust)
            errors.append(curve.error(1))
        assert errors == sorted(errors, reverse=True)
        assert errors[0] == pytest.approx(0.16, abs=0.02)
        assert errors[2] == pytest.approx(0.10, abs=0.02)

    def test_the_quantile_covers_nineteen_of_twenty(self) -> None:
        curve = served(Curve(Profile(TRUE, errors=(0.02,) * 8)), TRUE, 1_000, 0.2, spikes=0)
        draw = random.Random(5)
        beyond = sum(TRUE[3] * draw.gammavariate(25, 0.04) > curve.quantile * curve.predict(4) for _ in range(2_000))
        assert 40 < beyond < 170

    def test_that_uncertain_sizes_are_right_does_not_mean_that_there_is_no_noise(self) -> None:
        """Else the first batch of each would count as exact."""
        curve = Curve(Profile(TRUE, errors=(0.25,) * 8))
        for size, ns in enumerate(TRUE, 1):
            curve.observe(size, ns)
        assert curve.speed.noise > 0.04**2
        assert curve.error(8) > 0.04

    @pytest.mark.parametrize("noise", [0.03, 0.3])
    def test_noise_is_found(self, noise: float) -> None:
        curve = served(Curve(Profile(TRUE, errors=(0.25,) * 8)), TRUE, 800, noise, spikes=0)
        assert curve.speed.noise**0.5 == pytest.approx(noise, rel=0.25)


class TestSpeed:
    @pytest.mark.parametrize("slower", [1.5, 3.0, 0.6])
    def test_a_change_of_the_device_is_followed_in_some_batches_and_moves_no_size(self, slower: float) -> None:
        curve = served(Curve(Profile(TRUE, errors=(0.02,) * 8)), TRUE, 800, 0.05, spikes=0)
        served(curve, [slower * ns for ns in TRUE], 40, 0.05, spikes=0)
        assert curve.predict(4) == pytest.approx(slower * TRUE[3], rel=0.07)
        served(curve, TRUE, 40, 0.05, spikes=0)
        assert curve.predict(4) == pytest.approx(TRUE[3], rel=0.07)
        assert off(curve, TRUE) < 0.04

    def test_disturbances_that_last_some_batches_are_no_changes(self) -> None:
        """Of batches that follow each other several are disturbed alike."""
        curve, draw, changes = Curve(Profile(TRUE, errors=(0.02,) * 8)), random.Random(3), 0
        factors = [draw.gammavariate(11, 1 / 11) for _ in range(1_500)]
        for number in range(6_000):
            slow = factors[number // 4]
            curve.observe(1 + number % 8, round(TRUE[number % 8] * slow))
            changes += curve.speed.changing and number > 1_000
        assert changes < 50

    def test_it_returns_to_the_undisturbed_speed_while_nothing_runs(self) -> None:
        """A tenth of the way for each empty window: else a speed that has every call refused would stay for ever."""
        curve = Curve(Profile(TABLE, handover_ns=0))
        for _ in range(100):
            curve.observe(2, 300)
        curve.handover.observe(100 * US)
        curve.tick()  # they ran in this window
        slow = curve.speed.scale
        assert (slow, curve.handover.ns) == (pytest.approx(2.0, rel=0.05), 5_000)
        curve.tick()
        assert (curve.speed.scale, curve.handover.ns) == (pytest.approx(slow**0.9), 4_500)

    def test_what_is_planned_for_any_rows_follows_the_rows_that_arrive(self) -> None:
        curve = Curve(BY_LENGTH)
        for _ in range(200):
            curve.observe(2, 80, 1, 10)
        assert (curve.speed.scale, curve.planned) == (pytest.approx(1.0), pytest.approx(0.4, rel=1e-3))
        assert (curve.predict(2), curve.predict(2, 1, 10), curve.slowdown(2, 1)) == (80, 80, curve.planned)
        for _ in range(60):
            curve.tick()
        assert curve.planned == pytest.approx(1.0, abs=0.01)

    def test_slowdown_is_of_computing_and_hand_over(self) -> None:
        curve = Curve(Profile((100, 150), handover_ns=50))
        curve.speed.scale = 2.0
        assert curve.predict(1) == 250
        assert curve.slowdown(2, 1, 0) == pytest.approx(350 / 200)
        assert curve.slowdown(2, 1, 40) == pytest.approx(310 / 160)
        assert curve.slowdown(2, 1, 50) == 2.0  # to the last place: decisions of the past hang on it


class TestAtOnce:
    """Batches that ran beside others for some of their time say what others cost."""

    @staticmethod
    def served(profiled: float, true: float, shares: Sequence[float], mood: float = 1.0, batches: int = 800) -> Curve:
        """Batches of 1 ms alone; two at once are `true` times as slow, `profiled` by the profile."""
        curve = Curve(Profile((MS,), {2: (round(profiled * MS),)}, errors=(0.02,)), 2)
        noise = random.Random(7)
        for number in range(batches):
            share = shares[number % len(shares)]  # of its time, beside another
            time = mood * MS / (1 - share + share / true) * noise.uniform(0.9, 1.1)
            curve.observe(1, round(time), 1, others=share)
        return curve

    @pytest.mark.parametrize(
        ("profiled", "true"),
        [
            pytest.param(1.0, 2.0, id="slower-than-profiled"),
            pytest.param(2.0, 1.0, id="less-slow"),
            pytest.param(1.5, 1.5, id="as-profiled"),
        ],
    )
    def test_what_others_cost_is_found(self, profiled: float, true: float) -> None:
        curve = self.served(profiled, true, (0.0, 0.3, 0.6, 1.0), mood=1.2)
        assert profiled * curve.speed.slower == pytest.approx(true, rel=0.15)
        assert curve.predict(1, 2) / curve.predict(1) == pytest.approx(true, rel=0.15)

    def test_where_none_is_alone_that_is_hardly_learned(self) -> None:
        """They may all be slower because of what the server does beside them."""
        curve = self.served(1.0, 2.0, (1.0,))
        assert curve.predict(1, 2) == pytest.approx(2 * MS, rel=0.05)
        assert curve.speed.beside_error > 0.02

    def test_a_batch_alone_is_asked_for_while_what_others_cost_is_unknown(self) -> None:
        curve = Curve(Profile((MS,), errors=(0.02,)), 2)
        crowded = []
        for batches, others in ((15, 1), (1, 1), (1, 0), *[(1, 1), (1, 0)] * 200, (20, 1)):
            for _ in range(batches):
                curve.observe(1, MS, 1 + others, others=float(others))
            crowded.append(curve.speed.crowded)
        assert crowded[:3] == [False, True, False]
        assert not crowded[-1]  # by now it is known

    def test_of_several_others_their_mean_number_counts(self) -> None:
        """Three at once are profiled twice as slow, and are three times so."""
        curve = Curve(Profile((MS,), {2: (MS,), 3: (2 * MS,)}, errors=(0.02,)), 3)
        for _ in range(400):
            curve.observe(1, MS, 1, others=0.0)
            curve.observe(1, 3 * MS, 3, others=2.0)
        assert curve.predict(1, 3) == pytest.approx(3 * MS, rel=0.08)


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
def test_the_hand_over_follows_what_is_observed(profiled: int | None, observed: list[int], expected: int) -> None:
    handover = Handover(profiled)
    for spent_ns in observed:
        handover.observe(spent_ns)
    assert handover.ns == pytest.approx(expected, rel=0.01)
    assert handover.profiled_ns == (profiled or 0)
