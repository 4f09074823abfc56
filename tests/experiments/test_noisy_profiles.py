"""Profiles that are known only with noise."""

from __future__ import annotations

from app.scheduler.estimates.profile import linear
from experiments.policies.noisy_profiles import Cell, simulate


def test_no_profile_of_either_kind_is_worse_than_no_wait() -> None:
    for found in simulate(Cell("line", linear(7, 0.6, 16), 0.5, 0.3, 0, 8.0)):
        assert found["adaptive"]["all"] <= 1.01 * found["no_wait"]["all"]
