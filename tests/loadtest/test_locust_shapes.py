"""Shapes stay between one user and all; a ramp ends at the level that breaks its objective, and says which."""

from __future__ import annotations

import math
from dataclasses import replace

from loadtest.shapes import Objective, Ramp, Totals, percentile

OBJECTIVE = Objective(p99_ms=100, failures=0.01)


class Service:
    """What Locust would have counted: `rate` answers a second for each user, of which some are slow or fail."""

    def __init__(self, slow_from: int = 10**9, fail_from: int = 10**9) -> None:
        self.slow_from, self.fail_from = slow_from, fail_from
        self.totals = Totals(0, 0, {})

    def second(self, users: int) -> None:
        answers = 10 * users
        times = dict(self.totals.latencies_ms)
        latency = 300.0 if users >= self.slow_from else 5.0
        times[latency] = times.get(latency, 0) + answers
        failed = answers if users >= self.fail_from else 0
        self.totals = Totals(self.totals.requests + answers, self.totals.failures + failed, times)

    def climb(self, ramp: Ramp, seconds: int = 1000) -> int:
        """Seconds until the ramp ends by itself."""
        users = ramp.step(0.0, lambda: self.totals)
        for second in range(1, seconds):
            assert users is not None
            self.second(users)
            users = ramp.step(float(second), lambda: self.totals)
            if users is None:
                return second
        raise AssertionError("the ramp did not end")


def ramp(users: int = 40, seconds: float = 40, hold_s: float = 5) -> Ramp:
    return Ramp(users, seconds, hold_s, OBJECTIVE)


def test_a_ramp_that_nothing_breaks_goes_to_the_end() -> None:
    climbing = ramp()
    assert Service().climb(climbing) == 40
    assert [level.users for level in climbing.levels] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [level.rate for level in climbing.levels] == [10.0 * level.users for level in climbing.levels]
    assert climbing.broke == ""
    assert climbing.verdict().startswith("ramp: did not break; held 400.0 requests/s with 40 users, p99 5.0 ms")


def test_a_ramp_ends_at_the_level_whose_p99_is_too_long() -> None:
    climbing = ramp()
    assert Service(slow_from=18).climb(climbing) == 20  # four levels of five seconds
    assert climbing.verdict().splitlines() == [
        "ramp: broke at 200.0 requests/s with 20 users: p99 300.0 ms (objective 100 ms)",
        "ramp: held 150.0 requests/s with 15 users, p99 5.0 ms",
    ]


def test_a_ramp_ends_where_nothing_is_answered() -> None:
    climbing = ramp()
    silent = Totals(0, 0, {})
    asked = [climbing.step(float(second), lambda: silent) for second in range(6)]
    assert asked == [5, 5, 5, 5, 5, None]
    assert climbing.broke == "no answer came"


def test_a_level_is_judged_without_its_first_second_and_without_those_before() -> None:
    climbing, service = ramp(), Service()
    climbing.step(0.0, lambda: service.totals)
    slow = replace(service.totals, requests=50, latencies_ms={300.0: 50})
    climbing.step(1.0, lambda: slow)
    later = Totals(90, 0, {300.0: 50, 5.0: 40})
    assert climbing.step(5.0, lambda: later) == 10
    (level,) = climbing.levels
    assert (level.rate, level.p99_ms, level.requests) == (10.0, 5.0, 40)


def test_a_late_tick_makes_a_level_longer_and_not_its_rate_higher() -> None:
    climbing, service = ramp(), Service()
    climbing.step(0.0, lambda: service.totals)
    climbing.step(9.0, lambda: service.totals)  # the first tick for nine seconds: nothing is measured yet
    assert climbing.levels == []
    climbing.step(10.0, lambda: Totals(50, 0, {5.0: 50}))
    assert climbing.levels[0].rate == 50.0


def test_percentile_of_counts_is_the_nearest_rank() -> None:
    counts = {3.0: 1, 1.0: 98, 2.0: 1}
    assert [percentile(counts, share) for share in (0.5, 0.98, 0.99, 1.0)] == [1.0, 1.0, 2.0, 3.0]
    assert math.isnan(percentile({}, 0.5))
