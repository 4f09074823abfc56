"""The hand-over follows what most batches cost, and nothing where nothing was ever known of it."""

from __future__ import annotations

import random

import pytest

from app.scheduler.estimates.latency import Handover, Latency
from app.scheduler.types import Profile

US = 1_000


@pytest.mark.parametrize("profiled", [None, 0, 140 * US])
def test_it_begins_as_profiled(profiled: int | None) -> None:
    assert Handover(profiled).ns == Handover(profiled).profiled_ns == (profiled or 0)


def test_nothing_is_learnt_of_a_device_without_one() -> None:
    handover = Handover(None)
    for _ in range(100):
        handover.observe(300 * US)
        handover.tick()
    assert handover.ns == 0


@pytest.mark.parametrize("profiled", [0, 140 * US, 2_000 * US])
def test_it_converges_on_what_is_observed(profiled: int) -> None:
    handover = Handover(profiled)
    for _ in range(400):
        handover.observe(400 * US)
    assert handover.ns == pytest.approx(400 * US, rel=0.01)


def test_observing_what_is_predicted_changes_nothing() -> None:
    handover = Handover(140 * US)
    handover.observe(140 * US)
    assert handover.ns == 140 * US


@pytest.mark.parametrize(("spent_ns", "moved_ns"), [(10**10, 7 * US), (-(10**10), -7 * US)], ids=["late", "negative"])
def test_one_observation_moves_it_by_a_twentieth_at_most(spent_ns: int, moved_ns: int) -> None:
    handover = Handover(140 * US)
    handover.observe(spent_ns)
    assert handover.ns == 140 * US + moved_ns


def test_it_is_what_most_batches_cost() -> None:
    """One in ten waits for 10 ms: the mean would be 1.1 ms."""
    handover, chance = Handover(140 * US), random.Random(0)
    for _ in range(2_000):
        handover.observe(10_000 * US if chance.random() < 0.1 else 140 * US)
    assert 120 * US < handover.ns < 250 * US


def test_it_is_never_less_than_nothing() -> None:
    handover = Handover(0)
    handover.observe(-50 * US)
    assert handover.ns == 0


def test_it_returns_to_the_profile_while_nothing_runs() -> None:
    """For the reason for which the scale does: a hand-over that has every call refused would stay for ever."""
    handover = Handover(100 * US)
    for _ in range(400):
        handover.observe(1_100 * US)
    high = handover.ns
    handover.tick()  # something ran in this window
    assert handover.ns == high
    handover.tick()
    assert handover.ns == pytest.approx(100 * US + 0.9 * (high - 100 * US), abs=1)


class TestPrediction:
    """Batches compute for 100 and 150, and cost 30 beside."""

    LATENCY = Profile((100, 150), handover_ns=30)

    def test_every_size_costs_as_much(self) -> None:
        assert [Latency(self.LATENCY).predict(size) for size in (1, 2, 4)] == [130, 180, 330]

    def test_less_what_passes_while_the_worker_is_busy(self) -> None:
        assert [Latency(self.LATENCY).predict(1, lead_ns=lead) for lead in (10, 30, 70)] == [120, 100, 100]

    def test_the_scale_leaves_it_alone(self) -> None:
        latency = Latency(self.LATENCY)
        latency.scale = 3.0
        assert latency.predict(1) == 330

    def test_nothing_is_predicted_of_what_is_not_known(self) -> None:
        """A driver reads 0 as: not known."""
        assert Latency(Profile(handover_ns=30)).predict(1) == 0

    def test_a_window_without_a_batch_moves_both_back(self) -> None:
        latency = Latency(Profile((100,), handover_ns=0))
        latency.scale = 2.0
        latency.handover.observe(100 * US)
        latency.tick()  # it ran
        latency.tick()
        assert (latency.scale, latency.handover.ns) == (pytest.approx(1.81), 4_500)

    def test_slowdown_is_of_computing_and_hand_over(self) -> None:
        latency = Latency(Profile((100, 150), handover_ns=50))
        latency.scale = 2.0
        assert latency.slowdown(2, 1, 0) == pytest.approx(350 / 200)
        assert latency.slowdown(2, 1, 40) == pytest.approx(310 / 160)
        assert latency.slowdown(2, 1, 50) == 2.0  # to the last place: decisions of the past hang on it
