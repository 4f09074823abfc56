"""Slowdowns are found again from what batches took at some loads."""

from __future__ import annotations

import pytest
from tiers import full

from app.scheduler.estimates.profile import linear
from app.sim.fit import Load, fit
from app.sim.fleet import Setup, counted
from app.sim.front import FrontCosts

MS = 1_000_000
ONE = linear(2, 0, 1)  # each batch is of one row: what it takes over the profile is plain


def simulated(costs: FrontCosts, rates: list[float]) -> list[Load]:
    """What the batches of a server with these costs take, at so many requests a second."""
    profile = ONE.scaled(costs.scale)
    tallies = [counted(Setup(profile, rate, "no_wait", 1000, seed=7, front=costs)) for rate in rates]
    return [
        Load(rate, tally.busy_ns / tally.units / ONE.batch_ns[0]) for rate, tally in zip(rates, tallies, strict=True)
    ]


@full
@pytest.mark.parametrize("known", [FrontCosts(call_ns=MS), FrontCosts(call_ns=MS, decode_ns=2 * MS)])
def test_the_slowdown_of_made_up_loads_is_found(known: FrontCosts) -> None:
    real = FrontCosts(known.call_ns, decode_ns=known.decode_ns, scale=1.5, slowed=1.6)
    rates = [20.0, 60.0, 120.0]
    found = fit(ONE, known, loads := simulated(real, rates))
    assert found.scale == pytest.approx(1.5, rel=0.1)
    assert found.slowed > 0.9
    again = [one.over for one in simulated(found, rates)]
    assert again == pytest.approx([one.over for one in loads], rel=0.1)
    assert (found.call_ns, found.decode_ns) == (known.call_ns, known.decode_ns)


@full
def test_loads_that_differ_in_nothing_are_a_scale_alone() -> None:
    found = fit(ONE, FrontCosts(call_ns=MS), [Load(20, 2.0), Load(60, 2.0), Load(120, 2.0)])
    assert (found.scale, found.slowed) == (pytest.approx(2, rel=0.02), 0)
    assert fit(ONE, FrontCosts(call_ns=MS), []) == FrontCosts(call_ns=MS)
