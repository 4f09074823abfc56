"""The shapes of a load as Locust has them: classes that ask shapes.py how many users there should be."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from locust import LoadTestShape

from loadtest import shapes

log = logging.getLogger("loadtest")

SPAWN_RATE = 100.0  # users started in a second: the most that Locust recommends


class Timed(LoadTestShape):
    """A shape that is a function of time: `--users` at most, over `--run-time`."""

    abstract = True
    use_common_options = True
    course: ClassVar[staticmethod[[float, int, float], int]]

    def tick(self) -> tuple[int, float] | None:
        users, seconds = bounds(options_of(self.runner))
        at_s = self.get_run_time()
        return (self.course(at_s, users, seconds), SPAWN_RATE) if at_s < seconds else None


class Steps(Timed):
    """A quarter of the users, a half, three quarters, all."""

    course = staticmethod(shapes.steps)


class Diurnal(Timed):
    """From a tenth of the users up to all and down again, like a day."""

    course = staticmethod(shapes.diurnal)


class Spike(Timed):
    """A fifth of the users, and all of them in the middle fifth of the time."""

    course = staticmethod(shapes.spike)


class Ramp(LoadTestShape):
    """More and more users until the p99 or the share of failures breaks its objective."""

    use_common_options = True
    ramp: shapes.Ramp | None = None

    def reset_time(self) -> None:
        super().reset_time()
        options = options_of(self.runner)
        objective = shapes.Objective(options.max_p99_ms, options.max_failures)
        self.ramp = shapes.Ramp(*bounds(options), options.hold, objective)

    def tick(self) -> tuple[int, float] | None:
        assert self.ramp is not None
        levels = len(self.ramp.levels)
        users = self.ramp.step(self.get_run_time(), lambda: counted(self.runner))
        if len(self.ramp.levels) > levels:
            log.info("ramp: %s", self.ramp.levels[-1])
        return None if users is None else (users, SPAWN_RATE)


SHAPES: dict[str, type[LoadTestShape]] = {"steps": Steps, "diurnal": Diurnal, "spike": Spike, "ramp": Ramp}


def counted(runner: Any) -> shapes.Totals:
    total = runner.stats.total
    return shapes.Totals(total.num_requests, total.num_failures, dict(total.response_times))


def options_of(runner: Any) -> Any:
    """What was given on the command line."""
    return runner.environment.parsed_options


def bounds(options: Any) -> tuple[int, float]:
    """Most users and length in seconds; a shape needs both."""
    return options.num_users or 1, float(options.run_time or 60)
