"""Shapes stay between one user and all; a ramp ends at the level that breaks its objective, and says which."""

from __future__ import annotations

from loadtest.shapes import Objective, Ramp, Totals

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
