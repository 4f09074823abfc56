"""The state at one moment, for a scrape and the live page: the served models and the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.contract import CLASSES, Klass
from app.observe.metrics import ModelStats


@dataclass(frozen=True, slots=True)
class ActivationMemory:
    """The rows whose activations a device keeps between two stages, and the bytes of all batches that they are in.

    `places`: rows that memory is reserved for, for a model that generates text; 0: none is reserved.
    """

    rows: int
    nbytes: int
    places: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The figures by which a model's batches are planned. They change seldom.

    `stages`: number of stages that run one by one; 0: the model runs in one piece. `cell`: it runs step by step.
    `batch_ns[b - 1]`: profiled time of a batch of b rows; `origin`: where the profile is from. `tables[i][n]`: how many
    of n waiting rows to run at load `loads[i]`; 0: wait. No tables if the policy uses none, or they are not solved yet.
    """

    stages: int = 0
    cell: bool = False
    batch_ns: tuple[int, ...] = ()
    origin: str = ""
    loads: tuple[float, ...] = ()
    tables: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Gauges:
    """The state of one model at this moment.

    `scale`: observed over profiled time. `level`: index of the table for the present load, -1 below all.
    """

    stats: ModelStats
    pending_calls: int
    preferred: int
    rate: float
    slots_used: int
    regression: tuple[float, float, float] = (0.0, 0.0, 0.0)  # alpha, beta, residual of batch time on rows, ns
    activations: ActivationMemory | None = None  # for a model in stages
    waiting: Mapping[str, int] = field(default_factory=dict)  # rows, by class
    demand_ns: Mapping[str, int] = field(default_factory=dict)  # device time asked for since start, by class
    at_stages: Sequence[tuple[int, int]] = ()  # rows that wait and rows that run, of a model in stages
    oldest_ns: int = 0  # how long the oldest best-effort row has waited
    workers: int = 1  # of the device
    program: int = 0
    scale: float = 1.0
    level: int = -1
    plan: Plan = Plan()

    def classes(self) -> dict[str, dict[str, Any]]:
        """The statistics of the default class, and of those with ended or waiting calls."""
        calls, waiting = self.stats.calls, self.waiting
        return {
            name: {
                "queue_length": waiting.get(name, 0),
                **({"oldest_ms": self.oldest_ns / 1e6} if klass is Klass.BEST_EFFORT else {}),
                **self.stats.by_class[klass].as_dict(),
            }
            for name, klass in CLASSES.items()
            if name in calls or waiting.get(name)
        }


@dataclass(slots=True)
class Snapshot:
    """All served models, those that drain last, and each worker's busy seconds.

    `lag_s`: how late the event loop ran its last tick. `faults`: ticks at which something was left of calls that had
    gone.
    """

    models: list[Gauges]
    busy_s: list[float]
    lag_s: float = 0.0
    faults: int = 0
