"""Forwards a replica's metrics to Ray's own metrics.

Ray's proxy routes a scrape of /metrics to any one replica, like other requests. But each machine has one endpoint with
Ray's metrics, which Ray's Prometheus configuration knows, labelled by deployment and replica. The names are ours with
Ray's prefix: `ray_starling_requests_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from prometheus_client.core import Metric

#: Labels that only some samples of a family have. Ray needs all labels of a family when it is created.
_OPTIONAL = ("class", "operation", "stage")

Tags = tuple[tuple[str, str], ...]


class Forwarder:
    """Sets Ray's instruments from samples, and creates each at its first sample. `make` returns a Counter or Gauge.

    Counters stay counters. The buckets, sums and counts of histograms become gauges of the same names, which work in
    Prometheus' `histogram_quantile` and `rate` too: Ray's histograms only accept single observations.
    """

    def __init__(self, make: Callable[[str, str, str, tuple[str, ...]], Any] | None = None) -> None:
        self._make = make or _instrument
        self._instruments: dict[str, tuple[Any, tuple[str, ...]]] = {}
        self._reported: dict[tuple[str, Tags], float] = {}

    def forward(self, families: Iterable[Metric]) -> None:
        """Pass the present values to Ray. Gauges that are gone, as those of an unloaded model, become 0."""
        now: dict[tuple[str, Tags], float] = {}
        for family in families:
            for sample in family.samples:
                counts = family.type == "counter"
                name = family.name if counts else sample.name  # Ray itself appends _total
                key = name, tuple(sorted(sample.labels.items()))
                now[key] = sample.value
                if counts:
                    self._count(family, key, sample.value)
                else:
                    self._set(family, key, sample.value)
        for name, tags in self._reported.keys() - now.keys():
            instrument, labels = self._instruments[name]
            if hasattr(instrument, "set"):
                instrument.set(0, _with_all_labels(labels, tags))
        self._reported = now

    def _count(self, family: Metric, key: tuple[str, Tags], value: float) -> None:
        instrument, labels = self._instrument(family, key, "counter")
        more = value - self._reported.get(key, 0.0)
        if more > 0:
            instrument.inc(more, _with_all_labels(labels, key[1]))

    def _set(self, family: Metric, key: tuple[str, Tags], value: float) -> None:
        instrument, labels = self._instrument(family, key, "gauge")
        if self._reported.get(key) != value:
            instrument.set(value, _with_all_labels(labels, key[1]))

    def _instrument(self, family: Metric, key: tuple[str, Tags], kind: str) -> tuple[Any, tuple[str, ...]]:
        name, tags = key
        if name not in self._instruments:
            labels = tuple(sorted({label for label, _ in tags}.union(_OPTIONAL)))
            self._instruments[name] = self._make(kind, name, family.documentation, labels), labels
        return self._instruments[name]


def _with_all_labels(labels: tuple[str, ...], tags: Tags) -> dict[str, str]:
    """A value for every label. Prometheus treats an empty one as absent."""
    return {**dict.fromkeys(labels, ""), **dict(tags)}


def _instrument(kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
    metrics = import_module("ray.serve.metrics")
    return (metrics.Counter if kind == "counter" else metrics.Gauge)(name, text, labels)
