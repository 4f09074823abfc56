"""The figures of `make bench` with their rounds and targets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Target:
    """A bound for the median: at least `bound`, or at most. `aim` is a stricter goal."""

    bound: float
    at_most: bool = False
    aim: float | None = None

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound


@dataclass(frozen=True)
class Figure:
    """One line of the report: a value for each round, in `unit`."""

    what: str
    unit: str
    rounds: tuple[float, ...]
    target: Target | None = None
    note: str = ""

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met(self.median)

    def to_dict(self) -> dict[str, Any]:
        """The fields, and derived values for readers of the JSON."""
        followed = {"median": self.median, "min": min(self.rounds), "max": max(self.rounds), "met": self.met}
        return {**asdict(self), "rounds": list(self.rounds), **followed}
