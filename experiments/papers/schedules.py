"""The rates of Ebird's Figures 2 and 8."""

from __future__ import annotations

from dataclasses import dataclass

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
