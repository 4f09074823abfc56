"""How many users there are at each moment of a load: steps, a day, a spike, and a ramp that finds the breaking point.

The first three are functions of time. The ramp watches what comes back, and stops by itself: it is told the time and
what has been counted so far, and says how many users there should be. Locust's classes in locustfile.py only ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

STEPS = 4
_NIGHT = 0.1  # users at the start of a day, as a share of those at its height
_CALM = 0.2  # users before and after a spike, likewise
_SETTLE_S = 1.0  # of each level of a ramp: users are being started, and the last level's answers still come in


def percentile(counts: Mapping[float, int], share: float) -> float:
    """The least value that at least `share` (0 to 1) of the counted do not exceed; NaN of none."""
    total, seen = sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * total:
            return value
    return float("nan")


def steps(at_s: float, users: int, seconds: float) -> int:
    """A quarter of the users, a half, three quarters, all; each for as long as the others."""
    step = min(STEPS, 1 + int(at_s / seconds * STEPS))
    return max(1, round(users * step / STEPS))


def diurnal(at_s: float, users: int, seconds: float) -> int:
    """One day: from a tenth of the users up to all at half time, and down again, along a cosine."""
    height = (1 - math.cos(2 * math.pi * at_s / seconds)) / 2
    return max(1, round(users * (_NIGHT + (1 - _NIGHT) * height)))


def spike(at_s: float, users: int, seconds: float) -> int:
    """A fifth of the users; for the third of five equal parts, all of them."""
    return max(1, round(users * (1.0 if 2 <= at_s / seconds * 5 < 3 else _CALM)))


#: Users at a time of a run, all three by the same arguments: seconds since its start, most users, length in seconds.
Course = Callable[[float, int, float], int]


@dataclass(frozen=True, slots=True)
class Objective:
    """What the service must keep: 99 % of answers within `p99_ms`, and a failed share of at most `failures`."""

    p99_ms: float
    failures: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Counted since the run began. `latencies_ms` counts answers by their latency."""

    requests: int
    failures: int
    latencies_ms: Mapping[float, int]

    def since(self, earlier: Totals) -> Totals:
        times = {ms: count - earlier.latencies_ms.get(ms, 0) for ms, count in self.latencies_ms.items()}
        return Totals(
            self.requests - earlier.requests,
            self.failures - earlier.failures,
            {ms: count for ms, count in times.items() if count > 0},
        )


@dataclass(frozen=True, slots=True)
class Level:
    """What came back while the ramp had so many users."""

    users: int
    rate: float
    p99_ms: float
    failures: float
    requests: int

    def breach(self, objective: Objective) -> str:
        """How it broke the objective; "" where it kept it."""
        if not self.requests:
            return "no answer came"
        if self.failures > objective.failures:
            return f"{self.failures:.1%} failed (objective {objective.failures:.1%})"
        if self.p99_ms > objective.p99_ms:
            return f"p99 {self.p99_ms:.1f} ms (objective {objective.p99_ms:g} ms)"
        return ""

    def __str__(self) -> str:
        return f"{self.sent}, p99 {self.p99_ms:.1f} ms"

    @property
    def sent(self) -> str:
        return f"{self.rate:.1f} requests/s with {self.users} user{'s' if self.users > 1 else ''}"


@dataclass(slots=True)
class Ramp:
    """Up to `users` in equal levels of `hold_s` within `seconds`; ends at the level that breaks the objective.

    Each level is judged by its own answers alone, without those of its first second.
    """

    users: int
    seconds: float
    hold_s: float
    objective: Objective
    levels: list[Level] = field(default_factory=list)
    broke: str = ""
    _began_s: float = 0.0
    _base: tuple[float, Totals] | None = None

    @property
    def planned(self) -> int:
        """How many levels there are to be."""
        return max(1, min(self.users, int(self.seconds / self.hold_s)))

    @property
    def current(self) -> int:
        """Users of the level that runs."""
        return math.ceil(self.users * (len(self.levels) + 1) / self.planned)

    def step(self, now_s: float, count: Callable[[], Totals]) -> int | None:
        """Users from now on, or None: it is over. To be asked about once a second, with `now_s` from 0 on."""
        into_s = now_s - self._began_s
        if self._base is None:
            if into_s >= _SETTLE_S:
                self._base = (now_s, count())
        elif into_s >= self.hold_s and now_s > self._base[0]:
            level = self._measured(now_s, count())
            self.levels.append(level)
            self.broke = level.breach(self.objective)
            if self.broke or len(self.levels) == self.planned:
                return None
            self._began_s, self._base = now_s, None
        return self.current

    def _measured(self, now_s: float, totals: Totals) -> Level:
        assert self._base is not None
        since_s, base = self._base
        delta = totals.since(base)
        share = delta.failures / delta.requests if delta.requests else 0.0
        p99_ms = percentile(delta.latencies_ms, 0.99)
        return Level(self.current, delta.requests / (now_s - since_s), p99_ms, share, delta.requests)

    def verdict(self) -> str:
        """What was found, in one or two lines."""
        if not self.levels:
            return f"ramp: ended before its first level of {self.hold_s:g} s was over"
        *good, last = self.levels
        if not self.broke:
            return f"ramp: did not break; held {last}. More users would show where it does"
        held = f"held {good[-1]}" if good else "held no level"
        return f"ramp: broke at {last.sent}: {self.broke}\nramp: {held}"
