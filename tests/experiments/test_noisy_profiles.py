"""What is told of profiles that are known only with noise: measured as the server would, missed where it is missed."""

from __future__ import annotations

from typing import Any

import pytest

from app.scheduler.estimates.profile import linear
from experiments.policies.noisy_profiles import KINDS, VISITS, Cell, gain, known, missed, simulate

TRUE = linear(7, 0.6, 16).batch_ns


def cell(adaptive: float, exact: float = 18.0) -> dict[str, Any]:
    def mean(value: float) -> dict[str, float]:
        return {"all": value, "late": value, "solved": 0}

    return {"device": "mlp", "load": 0.5, "noise": 0.15, "kind": "repeated", "seed": 0,
            "no_wait": mean(20.0), "exact": mean(exact), "adaptive": mean(adaptive)}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_measured_knows_how_wrong_it_may_be(kind: str) -> None:
    times = KINDS[kind](TRUE, 0.15, 1)
    assert {len(some) for some in times.values()} == {VISITS}
    errors = known(times).errors
    assert len(errors) == len(TRUE)
    assert 0.02 < min(errors) <= max(errors) < 0.4


def test_no_profile_of_either_kind_is_worse_than_no_wait() -> None:
    for found in simulate(Cell("line", linear(7, 0.6, 16), 0.5, 0.3, 0, 8.0)):
        assert found["adaptive"]["all"] <= 1.01 * found["no_wait"]["all"]


def test_a_cell_above_no_wait_or_without_the_gain_is_missed() -> None:
    assert missed({"cells": [cell(18.2)]}) == []
    assert len(missed({"cells": [cell(20.4)]})) == 3
    assert len(missed({"cells": [cell(19.0)]})) == 1
    assert gain([cell(20.0, exact=19.9)]) is None
