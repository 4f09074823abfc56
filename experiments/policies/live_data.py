"""The results of comparing the policies over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

P99_WITHIN = 1.1  # of the best
PER_ROW_WITHIN = 1.03  # of batches of one row


@dataclass(frozen=True)
class Cell:
    """One policy at one load; times in ms. `beyond_ms`: mean difference to the policy with the lowest mean, by seed.

    `busy`: average number of units that ran at once. `lag_ms`: the part of the mean that is the load generator's lag.
    """

    model: str
    share: float
    rate: float
    policy: str
    seeds: int
    requests: int
    mean_ms: float
    beyond_ms: float
    ci95_ms: float
    p99_ms: float
    batch: float
    busy: float
    lag_ms: float
    errors: int

    @property
    def same(self) -> bool:
        return self.beyond_ms - self.ci95_ms <= 0


@dataclass(frozen=True)
class Tail:
    """The 99th percentile of `adaptive` over the best one, 1 if it is the best, with its 95 % interval."""

    model: str
    share: float
    best: str
    ratio: float
    low: float
    high: float

    @property
    def within(self) -> bool:
        return self.ratio <= P99_WITHIN


@dataclass(frozen=True)
class Control:
    """Device time per row under `adaptive` and in batches of one, ms. `profiled_ms`: per row, by batch size.

    `mixed`: their ratio by the profile, for the sizes that `adaptive` ran, which no change of the machine affects.
    """

    model: str
    peak: float
    rate: float
    adaptive_ms: float
    single_ms: float
    ratio: float
    low: float
    high: float
    batch: float
    mixed: float
    profiled_ms: dict[int, float]

    @property
    def within(self) -> bool:
        return self.ratio <= PER_ROW_WITHIN


@dataclass(frozen=True)
class Settings:
    """The options of a run. `bound`: units at once that cores and threads allow. `slo_ms`: bound of p99 at the peak.

    A policy whose mean was above `slo_ms` at `lost` seeds is given up at that load. `delays_ms`: the delays of `window`
    of which the one that serves the most rows is used. `least_mean`: whether `window` is also run with the delay of the
    least mean latency. `block_s`, `draws`: of the bootstrap.
    """

    at_once: int
    threads: int
    cores: int
    bound: int
    repeats: int
    seconds: float
    slo_ms: float
    lost: int
    delays_ms: tuple[float, ...]
    least_mean: bool
    block_s: float
    draws: int


@dataclass
class Comparison:
    """All results. `peaks`: requests/s by model."""

    settings: Settings
    facts: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    control: Control | None = None

    def missed(self) -> list[str]:
        """The targets that are missed. Means count as missed only outside of their interval."""
        slower = [
            f"{cell.model}, {cell.share:.0%}: the mean of adaptive is not the lowest"
            for cell in self.cells
            if cell.policy == "adaptive" and not cell.same
        ]
        far = [
            f"{tail.model}, {tail.share:.0%}: p99 is {tail.ratio:.2f} x the best"
            for tail in self.tails
            if not tail.within
        ]
        dear = self.control is not None and not self.control.within
        return [*slower, *far, *(["control: a row takes more device time than in batches of one"] if dear else [])]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From stored JSON, in which keys are texts and tuples are lists."""
        settings, control = data["settings"], data["control"]
        if control is not None:
            control = Control(**{**control, "profiled_ms": {int(b): ms for b, ms in control["profiled_ms"].items()}})
        return cls(
            Settings(**{**settings, "delays_ms": tuple(settings["delays_ms"])}), data["facts"], data["peaks"],
            [Cell(**one) for one in data["cells"]], [Tail(**one) for one in data["tails"]], control,
        )  # fmt: skip
