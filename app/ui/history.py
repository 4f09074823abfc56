"""The history that the page shows when it is opened: a sample every ten seconds, of the last fifteen minutes.

A sample is a few numbers for each loaded model and for the process: 15 kB each in all.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from app.observe.metrics import ModelStats
from app.observe.snapshot import Gauges, Snapshot

EVERY_US = 10_000_000
SAMPLES = 90

Track = deque[list[float]]


class Machine(NamedTuple):
    """Use of resources: CPU seconds and memory of the process, bytes of device memory (0 on a CPU)."""

    cpu_s: float
    memory: int
    device_memory: int


class History:
    """Keeps the samples. Times are microseconds since the start of the Hub."""

    def __init__(self) -> None:
        self._at: deque[int] = deque(maxlen=SAMPLES)
        self._cpu_s = 0.0
        self._counts: dict[ModelStats, tuple[int, int]] = {}  # calls that succeeded and failed, at the last sample
        # All tracks end with the last sample; that of a model loaded later is shorter.
        self._process: Track = deque(maxlen=SAMPLES)
        self._models: dict[tuple[str, str], Track] = {}

    def due(self, at: int) -> bool:
        return not self._at or at - self._at[-1] >= EVERY_US

    def add(self, at: int, snapshot: Snapshot, machine: Machine) -> None:
        """Add a sample of this moment. Rates are differences to the sample before; the first has none."""
        span_s = (at - self._at[-1]) / 1e6 if self._at else 0.0
        cores = (machine.cpu_s - self._cpu_s) / span_s if span_s else 0.0
        self._at.append(at)
        self._cpu_s = machine.cpu_s
        self._process.append([round(cores, 2), machine.memory, machine.device_memory])
        counts = {one.stats: _counts(one.stats) for one in snapshot.models}
        sums: dict[tuple[str, str], list[float]] = {}
        for one in snapshot.models:
            # During a reload there are two programs of a version, and both have calls: they are added.
            key = one.stats.model, one.stats.version
            values = self._values(one, counts[one.stats], span_s)
            sums[key] = [a + b for a, b in zip(sums.get(key, [0.0] * len(values)), values, strict=True)]
        self._counts = counts
        self._models = {key: self._models.get(key, deque(maxlen=SAMPLES)) for key in sums}
        for key, values in sums.items():
            self._models[key].append([round(value, 2) for value in values])

    def _values(self, one: Gauges, counts: tuple[int, int], span_s: float) -> list[float]:
        before = self._counts.get(one.stats, (0, 0))
        rates = [(now - then) / span_s if span_s else 0.0 for now, then in zip(counts, before, strict=True)]
        return [*rates, one.waiting.get("realtime", 0), one.waiting.get("best_effort", 0)]

    def as_dict(self) -> dict[str, Any]:
        """For the page: lists of samples, oldest first."""
        return {
            "at": list(self._at),
            "process": list(self._process),  # cores, memory, device memory
            "models": [
                {"name": name, "version": version, "samples": list(track)}  # answered/s, failed/s, rows waiting
                for (name, version), track in self._models.items()
            ],
        }


def _counts(stats: ModelStats) -> tuple[int, int]:
    outcomes = stats.outcomes
    return outcomes["ok"], outcomes.total() - outcomes["ok"]
