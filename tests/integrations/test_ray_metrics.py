"""What Ray's instruments are told: counters their growth, all else its value, and 0 when it is gone."""

from __future__ import annotations

from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from app.integrations.ray_metrics import Forwarder


class Instruments:
    """Stands in for those of Ray, which want a value for each of their labels."""

    def __init__(self) -> None:
        self.labels: dict[str, tuple[str, ...]] = {}
        self.said: list[tuple[str, float, dict[str, str]]] = []

    def __call__(self, kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
        assert name not in self.labels, "made twice"
        self.labels[name] = labels

        def tell(value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(labels)
            self.said.append((name, value, {label: text for label, text in tags.items() if text}))

        return type("Instrument", (), {"inc" if kind == "counter" else "set": staticmethod(tell)})()

    def since(self) -> list[tuple[str, float, dict[str, str]]]:
        said, self.said = self.said, []
        return said


def counter(value: float, **labels: str) -> Metric:
    family = CounterMetricFamily("starling_requests", "Calls.", labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def gauge(value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily("starling_queue_length", "Rows.", labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def test_a_counter_is_told_by_how_much_it_has_grown() -> None:
    ray = Instruments()
    forwarder = Forwarder(ray)
    for families in (
        [counter(3, model="m")],
        [counter(3, model="m")],
        [counter(5, model="m")],
        [],
        [counter(1, model="m")],
    ):
        forwarder.forward(families)
    assert ray.since() == [("starling_requests", value, {"model": "m"}) for value in (3, 2, 1)]


def test_a_gauge_is_told_when_it_changes_and_is_0_when_its_model_has_gone() -> None:
    ray = Instruments()
    forwarder = Forwarder(ray)
    for families in ([gauge(7, model="m")], [gauge(7, model="m")], [gauge(8, model="m")], [], []):
        forwarder.forward(families)
    assert [value for _, value, _ in ray.since()] == [7, 8, 0]


def test_samples_of_one_family_may_have_further_labels() -> None:
    ray = Instruments()
    forwarder = Forwarder(ray)
    forwarder.forward([gauge(1, model="m")])
    forwarder.forward([gauge(1, model="m"), gauge(2, model="m", stage="1")])
    assert ray.since() == [
        ("starling_queue_length", 1, {"model": "m"}),
        ("starling_queue_length", 2, {"model": "m", "stage": "1"}),
    ]


def test_a_histogram_keeps_its_buckets() -> None:
    ray = Instruments()
    family = HistogramMetricFamily("starling_batch_size", "Rows.", labels=["model"])
    family.add_metric(["m"], [("1", 2.0), ("+Inf", 3.0)], 9.0)
    Forwarder(ray).forward([family])
    assert ray.since() == [
        ("starling_batch_size_bucket", 2.0, {"model": "m", "le": "1"}),
        ("starling_batch_size_bucket", 3.0, {"model": "m", "le": "+Inf"}),
        ("starling_batch_size_count", 3.0, {"model": "m"}),
        ("starling_batch_size_sum", 9.0, {"model": "m"}),
    ]
