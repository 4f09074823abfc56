"""The preset `preferred` in the simulator, against figures of an independent event simulation of Khan et al.

T = 3 + 0.35 b ms, batches up to 32, Poisson arrivals, one serial device; mean and p99 in milliseconds, device time per
request in milliseconds. Literal: no bound on the wait but one so far off that it ends the last, lone request only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tiers import full

from app.scheduler.estimates.profile import linear
from app.sim.fleet import Setup, run

pytestmark = full
PROFILE = linear(3, 0.35, 32)
REQUESTS = {5: 3_000, 60: 3_000, 240: 8_000, 600: 20_000}


@cache
def simulated(policy: str, rate: int) -> dict[str, Any]:
    bound = 40_000_000_000 // rate  # 40 mean gaps
    return run(Setup(PROFILE, rate, policy, REQUESTS[rate], max_delay_ns=bound, max_queue=1 << 20))


@pytest.mark.parametrize(("rate", "mean_ms", "p99_ms"), [(5, 104.6, 814), (240, 6.4, 21.8)], ids=["5", "240"])
def test_literal(rate: int, mean_ms: float, p99_ms: float) -> None:
    found = simulated("preferred", rate)
    assert found["completed"] == REQUESTS[rate]
    assert found["p99_ms"] == pytest.approx(p99_ms, rel=0.15)
    assert found["mean_ms"] == pytest.approx(mean_ms, rel=0.06)


@pytest.mark.parametrize(("policy", "busy_ms"), [("preferred", 1.85), ("no_wait", 3.29)])
def test_what_waiting_buys_is_device_time(policy: str, busy_ms: float) -> None:
    """At 60 a second two rows share the 3 ms that every batch costs; the first second's go one by one."""
    assert 1e3 * simulated(policy, 60)["busy_s_per_request"] == pytest.approx(busy_ms, rel=0.02)
