"""The figures of `make bench` with their rounds and targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Self


@dataclass(frozen=True)
class Target:
    """A bound for the median: at least `bound`, or at most. `aim` is a stricter goal."""

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        target = None if data["target"] is None else Target(**data["target"])
        return cls(data["what"], data["unit"], tuple(data["rounds"]), target, data["note"])


@dataclass(frozen=True)
class Report:
    """One run. `failed` holds the reason for each case that could not be measured."""

    facts: dict[str, str]
    cases: dict[str, list[Figure]]
    failed: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        cases = {name: [figure.to_dict() for figure in figures] for name, figures in self.cases.items()}
        return {"facts": self.facts, "cases": cases, "failed": self.failed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        cases = {name: [Figure.from_dict(one) for one in figures] for name, figures in data["cases"].items()}
        return cls(data["facts"], cases, data["failed"])
