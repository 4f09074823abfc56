"""The rates of Ebird's Figures 2 and 8, and the results of running a model at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

LOW, HIGH = 0.3, 0.9  # Figure 8: shares of the largest rate
STEPS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # Figure 2: of the same, 150 requests each


@dataclass(frozen=True)
class Schedule:
    """`steps`: number of requests and their rate, as a share of the peak."""

    name: str
    steps: tuple[tuple[int, float], ...]


SCHEDULES = (
    Schedule("climb", tuple((150, share) for share in STEPS)),
    Schedule("burst", ((150, LOW), (250, HIGH))),
)

#: One model: its name, peak, seeds and batch times, and under the name of each schedule a cell for each policy. A cell
#: holds the means of each step by seed, live and simulated, and the latencies of the first seed.
Study = dict[str, Any]


class Settings(TypedDict):
    """The options of all runs. `given`: whether the peaks are from the command line. `warm_s`: left out of each run."""

    at_once: int
    threads: int
    cores: int
    delay_ms: float
    given: bool
    slo_ms: float
    warm_s: float


class StepsData(TypedDict):
    facts: dict[str, str]
    settings: Settings
    schedules: list[dict[str, Any]]
    studies: list[Study]
