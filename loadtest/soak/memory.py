"""Whether memory grows: the slope of its samples against their noise.

Samples of one process depend on one another: memory comes in steps, and a step stays. So the samples after the settling
time are averaged over equal stretches of time, which are nearly independent, and a line is fitted to the averages by
least squares. Its slope has a 95 % confidence interval by Student's t with two degrees of freedom less than stretches.
Memory is flat if that interval reaches down to 0, or if the line rises over the whole time by less than twice the
standard deviation of the samples about it, which is what a single reading is off by anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STRETCHES = 20
LEAST_S = 25.0  # of samples: a shorter time says nothing about a slope
#: Student's t for 18 degrees of freedom, two-sided 95 %.
_T95 = 2.101


@dataclass(frozen=True, slots=True)
class Trend:
    """Of a straight line through memory in MiB. `grown`: what it rises by over the samples' time."""

    per_hour: float
    low: float  # the interval's ends, MiB an hour
    high: float
    grown: float
    noise: float  # standard deviation of the samples about the line
    first: float  # the line's ends
    last: float

    @property
    def flat(self) -> bool:
        return self.low <= 0 or self.grown <= 2 * self.noise


def trend(seconds: Sequence[float], mib: Sequence[float], settle_s: float) -> Trend | None:
    """None if the samples after `settle_s` are too few to say."""
    t, y = np.asarray(seconds, float), np.asarray(mib, float)
    t, y = t[t >= settle_s], y[t >= settle_s]
    if len(t) < 2 * STRETCHES or t[-1] - t[0] < LEAST_S:
        return None
    groups = np.array_split(np.arange(len(t)), STRETCHES)
    centre = np.array([t[group].mean() for group in groups])
    level = np.array([y[group].mean() for group in groups])
    about = centre - centre.mean()
    slope = float(about @ (level - level.mean()) / (about @ about))
    line = level.mean() + slope * about
    error = math.sqrt(float(((level - line) ** 2).sum()) / (STRETCHES - 2) / float(about @ about))
    first, last = (float(level.mean() + slope * (at - centre.mean())) for at in (t[0], t[-1]))
    noise = float(np.std(y - (level.mean() + slope * (t - centre.mean())), ddof=2))
    hour = 3600.0
    return Trend(
        slope * hour, (slope - _T95 * error) * hour, (slope + _T95 * error) * hour, last - first, noise, first, last
    )  # fmt: skip
