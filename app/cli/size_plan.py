"""What `starling size` is asked for, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.cli.size_subject import HttpCost, Subject
    from app.sim.fleet import Setup
    from app.sim.sizing import Estimate


@dataclass(frozen=True, slots=True)
class Goal:
    """`headroom`: the share of `rate` that must fit on top. `most`: replicas to consider."""

    rate: float
    p99_ns: float
    headroom: float
    most: int

    @property
    def sized_rate(self) -> float:
        return self.rate * (1 + self.headroom)


@dataclass(frozen=True, slots=True)
class Found:
    """A configuration, and the fewest replicas of it that reach the goal; None: no number does.

    `at`: what that many make of the rate and of the rate with headroom, then what one less makes of them.
    `most_rate`: the largest rate that they keep the objective at.
    """

    setup: Setup
    replicas: int | None
    at: tuple[Estimate, ...] = ()
    most_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, and of what. `found`: every configuration that was tried. `policy`: as given, or none."""

    goal: Goal
    subject: Subject
    http: HttpCost
    found: Sequence[Found]
    policy: str = ""
