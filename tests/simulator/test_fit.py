"""Slowdowns are found again from what batches took at some loads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiers import full

from planner.fit import fit, front_costs
from planner.fleet import Setup, counted
from planner.front_load import FrontLoad
from planner.profile_times import linear
from planner.simulated_front import FrontCosts

MS = 1_000_000
ONE = linear(2, 0, 1)  # each batch is of one row: what it takes over the profile is plain


def load(rate: float, over: float, size: int = 1, loop_s: float = 0.0, spread: float = 0.0) -> FrontLoad:
    """A second of requests in batches of one size, which take so many times what `ONE` says."""
    count = rate / size
    return FrontLoad(1, rate, loop_s, 0, {size: (count, count * over * ONE.batch_ns[0] / 1e9)}, spread)


def simulated(costs: FrontCosts, rates: list[float]) -> list[FrontLoad]:
    """What the batches of a server with these costs take, at so many requests a second."""
    profile = ONE.scaled(costs.scale)
    tallies = [counted(Setup(profile, rate, "no_wait", 2000, seed=7, front=costs)) for rate in rates]
    return [
        load(rate, tally.busy_ns / tally.units / ONE.batch_ns[0], loop_s=tally.front_ns / tally.end_ns)
        for rate, tally in zip(rates, tallies, strict=True)
    ]


@full
@pytest.mark.parametrize("known", [FrontCosts(call_ns=2 * MS), FrontCosts(call_ns=MS, decode_ns=2 * MS)])
def test_the_slowdown_of_simulated_loads_is_found(known: FrontCosts) -> None:
    real = replace(known, scale=1.5, slowed=1.6)
    found = fit(ONE, known, simulated(real, [5.0, 60.0, 120.0]))
    assert (found.scale, found.slowed) == (pytest.approx(1.5, rel=0.1), pytest.approx(1.6, rel=0.25))
    assert found.error < 0.05
    assert (found.call_ns, found.decode_ns) == (known.call_ns, known.decode_ns)


def test_loads_that_differ_in_nothing_are_a_scale_alone() -> None:
    for rates in ((20, 60, 120), (60,)):
        found = fit(ONE, FrontCosts(call_ns=MS), [load(rate, 2.0, loop_s=rate / 1e3) for rate in rates])
        assert (found.scale, found.slowed, found.error) == (pytest.approx(2), pytest.approx(0), pytest.approx(0))
    assert fit(ONE, FrontCosts(call_ns=MS), [FrontLoad(1, 9, 0.1, 0)]) == FrontCosts(call_ns=MS)


def test_loads_that_no_slowdown_explains_are_an_error() -> None:
    """Batches that are faster at a higher load, by a fifth and by a quarter. Few of a light load say little."""
    loads = [load(20, 2.0, loop_s=0.02, spread=0.3), load(60, 1.6, loop_s=0.06), load(120, 1.5, loop_s=0.12)]
    found = fit(ONE, FrontCosts(call_ns=MS), loads)
    assert (found.scale, found.slowed) == (pytest.approx(1.59, abs=0.01), 0)
    assert found.error == pytest.approx(0.1, abs=0.02)
    assert found.spread == pytest.approx(0.3 * 40 / 316, abs=1e-6)


def test_a_difference_no_larger_than_noise_is_hardly_a_slowdown() -> None:
    """A front that was busy for 3 % of the time and for 5 explains no tenth of the batch times."""
    found = fit(ONE, FrontCosts(), [load(100, 1.0, loop_s=0.03), load(100, 1.1, loop_s=0.05)])
    assert 1.0 < found.scale < 1.05
    assert found.slowed * 0.02 < 0.03


def test_a_request_and_a_batch_are_told_apart_by_how_many_share_one() -> None:
    """1 ms a request and 2 a batch, of a loop that 100 requests a second keep at work for so much of the time."""
    loads = [load(100, 1, size, 0.1 * (1 + 2 / size)) for size in (1, 8, 1, 2, 4)]
    found = front_costs(loads)
    assert (found.call_ns, found.batch_ns) == (pytest.approx(MS, rel=1e-6), pytest.approx(2 * MS, rel=1e-6))
    assert (found.decode_ns, found.group_ns) == (0, 0)
    cold = front_costs([load(4, 1, 1, 0.1), *loads])  # 25 ms a request, of which there are 4 in 500
    assert (cold.call_ns, cold.batch_ns) == (pytest.approx(MS, rel=0.4), pytest.approx(2 * MS, rel=0.4))
    alone = front_costs(loads[:1])
    assert (alone.call_ns, alone.batch_ns) == (pytest.approx(3 * MS), 0)
