"""What is known after the policies were run against one another over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

P99_WITHIN = 1.1  # of the best
PER_ROW_WITHIN = 1.03  # of batches of one row


@dataclass(frozen=True)
class Cell:
    """One policy at one load; ms. `beyond_ms` to the policy with the lowest mean, paired by seed.

    `busy`: units that ran at once, on average over time. `lag_ms` of the mean is the load generator's own.
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
    """The 99th percentile of `adaptive` over that of the best, 1 where it is the best itself, with 95 % ends."""

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
    """Device time of a row under `adaptive` over that in batches of one; ms. `profiled_ms`: by size, per row.

    `mixed`: the same ratio from the profile, for the sizes that `adaptive` ran: no change of the machine is in it.
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
    """What was asked for. `bound`: units at once that cores and threads allow. `slo_ms`: kept at the peak.

    A policy whose mean was beyond `slo_ms` at `lost` seeds gets no more of that load. `delays_ms`: those of `window` of
    which the one that serves the most rows is run; `least_mean`: whether the one with the least mean is run as well.
    `blocks_s`, `draws`: of the bootstrap.
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
    """All that was measured. `peaks` in requests/s by model."""

    settings: Settings
    facts: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    control: Control | None = None

    def missed(self) -> list[str]:
        """Targets that are missed, going by the figures themselves and, of the means, by their interval."""
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
        """From what JSON kept, whose keys are texts and whose sequences are lists."""
        settings, control = data["settings"], data["control"]
        if control is not None:
            control = Control(**{**control, "profiled_ms": {int(b): ms for b, ms in control["profiled_ms"].items()}})
        return cls(
            Settings(**{**settings, "delays_ms": tuple(settings["delays_ms"])}), data["facts"], data["peaks"],
            [Cell(**one) for one in data["cells"]], [Tail(**one) for one in data["tails"]], control,
        )  # fmt: skip
