"""What is counted in a replica, handed to Ray's own metrics.

A request through Ray's proxy reaches one replica, whichever: so does a scrape of /metrics. Ray has one place on each
machine to scrape, which its own Prometheus configuration knows, and labels what is counted there by deployment and
replica. The names are ours with Ray's prefix: `ray_starling_requests_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from prometheus_client.core import Metric

#: Labels that only some samples of a family have. Ray wants to know all of a family's labels when it is made.
_OPTIONAL = ("class", "operation", "stage")

Tags = tuple[tuple[str, str], ...]


class Forwarder:
    """Hands samples to instruments of Ray, made when a name is first met. `make` gives Ray's Counter or Gauge.

    Counters stay counters. The buckets, sums and counts of histograms are gauges of the same names, which Prometheus'
    `histogram_quantile` and `rate` take all the same: Ray's histograms can only be given single observations.
    """

    def __init__(self, make: Callable[[str, str, str, tuple[str, ...]], Any] | None = None) -> None:
        self._make = make or _instrument
        self._instruments: dict[str, tuple[Any, tuple[str, ...]]] = {}
        self._told: dict[tuple[str, Tags], float] = {}

    def forward(self, families: Iterable[Metric]) -> None:
        """Tell Ray how things are now. What is there no longer, as of an unloaded model, becomes 0."""
        now: dict[tuple[str, Tags], float] = {}
        for family in families:
            for sample in family.samples:
                counts = family.type == "counter"
                name = family.name if counts else sample.name  # Ray appends _total itself
                key = name, tuple(sorted(sample.labels.items()))
                now[key] = sample.value
                if counts:
                    self._count(family, key, sample.value)
                else:
                    self._set(family, key, sample.value)
        for name, tags in self._told.keys() - now.keys():
            instrument, labels = self._instruments[name]
            if hasattr(instrument, "set"):
                instrument.set(0, _all(labels, tags))
        self._told = now

    def _count(self, family: Metric, key: tuple[str, Tags], value: float) -> None:
        instrument, labels = self._instrument(family, key, "counter")
        more = value - self._told.get(key, 0.0)
        if more > 0:
            instrument.inc(more, _all(labels, key[1]))

    def _set(self, family: Metric, key: tuple[str, Tags], value: float) -> None:
        instrument, labels = self._instrument(family, key, "gauge")
        if self._told.get(key) != value:
            instrument.set(value, _all(labels, key[1]))

    def _instrument(self, family: Metric, key: tuple[str, Tags], kind: str) -> tuple[Any, tuple[str, ...]]:
        name, tags = key
        if name not in self._instruments:
            labels = tuple(sorted({label for label, _ in tags}.union(_OPTIONAL)))
            self._instruments[name] = self._make(kind, name, family.documentation, labels), labels
        return self._instruments[name]


def _all(labels: tuple[str, ...], tags: Tags) -> dict[str, str]:
    """Every label has a value; an empty one is none, to Prometheus."""
    return {**dict.fromkeys(labels, ""), **dict(tags)}


def _instrument(kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
    metrics = import_module("ray.serve.metrics")
    return (metrics.Counter if kind == "counter" else metrics.Gauge)(name, text, labels)
