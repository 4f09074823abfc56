"""Figures: what was measured in each round, and what it had to reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A bound that the median has to keep: at least `bound`, or at most. `aim` is what we would like."""

    bound: float
    at_most: bool = False
    aim: float | None = None

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        text = f"{'at most' if self.at_most else 'at least'} {self.bound:g}"
        return text if self.aim is None else f"{text}, aim {self.aim:g}"


@dataclass(frozen=True)
class Figure:
    """One line of the report: a value for each round, in `unit`. Figures without a target explain those with one."""

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

    def as_json(self) -> dict[str, Any]:
        target = self.target
        return {
            "what": self.what,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.rounds),
            "max": max(self.rounds),
            "rounds": list(self.rounds),
            "target": None if target is None else str(target),
            "met": self.met,
            "note": self.note,
        }


def alternate(rounds: int, *contenders: Callable[[], T]) -> list[list[T]]:
    """Measure the contenders in turn, A B A B ..., so that the machine's mood falls on all; one list per contender."""
    results: list[list[T]] = [[] for _ in contenders]
    for _ in range(rounds):
        for measured, contender in zip(results, contenders, strict=True):
            measured.append(contender())
    return results


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, ...]:
    """Round by round: neighbours in time, so that drift cancels."""
    return tuple(a / b for a, b in zip(numerator, denominator, strict=True))
