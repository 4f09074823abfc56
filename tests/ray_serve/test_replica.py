"""A replica of Ray Serve, without Ray: its server, its settings, its metrics."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from models.folders import write_model
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starling_ray import deployment as ray_serve
from starling_ray import replica
from starling_ray.metrics import Forwarder
from starling_ray.replica import SERVERS_OWN, Replica, replica_settings

from app.errors import ConfigError
from app.settings import Settings

# One replica in process: the same answers as behind a server, under a prefix too, and an end that leaves nothing.


DEMO = Path(__file__).parents[2] / "app" / "models" / "demo"
ONE = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(models=str(DEMO), profile_dir=tmp_path, profile_budget_s=0)


def client(app: Any, root_path: str = "") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, root_path=root_path)
    return httpx.AsyncClient(transport=transport, base_url="http://replica")


async def test_prefix_of_the_router_is_taken_off_and_its_request_id_stands_once(settings: Settings) -> None:
    one = Replica()
    await one.start(settings)
    async with client(one, root_path="/served") as http:
        answer = await http.post("/served/v2/models/echo/infer", json=ONE)
        assert answer.status_code == 200
        assert "x-request-id" not in answer.headers  # the router adds it
        assert (await http.get("/served/v2/models/echo")).status_code == 200
        assert (await http.get("/servedelsewhere")).status_code == 404
    await one.stop()


async def test_a_model_that_cannot_serve_is_told_and_nothing_is_left(settings: Settings, tmp_path: Path) -> None:
    write_model(tmp_path / "wrong", 'source = "nothing.py:Nobody"\n', code=None)
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="wrong"):
        await Replica().start(settings.model_copy(update={"models": str(tmp_path)}))
    assert not {one.name for one in set(threading.enumerate()) - before if one.name.startswith("worker")}


async def test_end_of_the_lifespan_ends_the_engine(settings: Settings) -> None:
    one = Replica()
    await one.start(settings)
    assert [found.samples[0].value for found in one.families() if found.name == "starling_live"] == [1]
    assert one.failed() is None
    one._state["engine"].driver.lost = "worker 0 has died"
    assert one.failed() == "worker 0 has died"
    one._state["engine"].driver.lost = None
    phases, told = iter(("startup", "shutdown")), []

    async def receive() -> dict[str, str]:
        return {"type": f"lifespan.{next(phases)}"}

    async def send(message: Any) -> None:
        told.append(message["type"])

    await one({"type": "lifespan"}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    async with client(one) as http:
        answer = await http.post("/v2/models/echo/infer", json=ONE)
    assert answer.status_code == 503


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({name: "anything"}, name) for name in ("port", "model_control", "record")),  # of a server with a socket
        ({"max_bach": 3}, "max_bach"),
        ({"max_batch": 0}, r"max_batch: .* got 0"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], message: str) -> None:
    assert SERVERS_OWN.keys() <= Settings.model_fields.keys()
    with pytest.raises(ConfigError, match=message):
        replica_settings(given)


def test_a_replica_computes_with_the_cores_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "cpu_cores", lambda: 2)
    assert replica_settings({}, 0.5).threads == 1
    assert replica_settings({}, 64).threads == 2
    assert replica_settings({"threads": 1}, 2).threads == 1
    assert replica_settings({}).threads is None


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(ray_serve.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'ray\[serve\]'"):
        ray_serve.starling_app(models="demo")


# What Ray's instruments are told: counters their growth, all else its value, and 0 when it is gone.


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


def family(kind: type[Any], name: str, value: float, **labels: str) -> Metric:
    made: Metric = kind(name, "Text.", labels=["model", *labels])
    made.add_metric(["m", *labels.values()], value)  # type: ignore[attr-defined]
    return made


counter = partial(family, CounterMetricFamily, "starling_requests")
gauge = partial(family, GaugeMetricFamily, "starling_queue_length")
M = {"model": "m"}


def told(*scrapes: list[Metric]) -> list[tuple[str, float, dict[str, str]]]:
    """What the instruments are told by these scrapes, one after another."""
    ray = Instruments()
    forwarder = Forwarder(ray)
    for families in scrapes:
        forwarder.forward(families)
    return ray.said


def test_a_counter_is_told_by_how_much_it_has_grown() -> None:
    found = told([counter(3)], [counter(3)], [counter(5)], [], [counter(1)])
    assert found == [("starling_requests", value, M) for value in (3, 2, 1)]


def test_a_gauge_is_told_when_it_changes_and_is_0_when_its_model_has_gone() -> None:
    found = told([gauge(7)], [gauge(7)], [gauge(8)], [], [])
    assert found == [("starling_queue_length", value, M) for value in (7, 8, 0)]


def test_samples_of_one_family_may_have_further_labels() -> None:
    found = told([gauge(1)], [gauge(1), gauge(2, stage="1")])
    assert found == [("starling_queue_length", 1, M), ("starling_queue_length", 2, {**M, "stage": "1"})]


def test_a_histogram_keeps_its_buckets() -> None:
    family = HistogramMetricFamily("starling_batch_size", "Rows.", labels=["model"])
    family.add_metric(["m"], [("1", 2.0), ("+Inf", 3.0)], 9.0)
    assert told([family]) == [
        ("starling_batch_size_bucket", 2.0, {**M, "le": "1"}),
        ("starling_batch_size_bucket", 3.0, {**M, "le": "+Inf"}),
        ("starling_batch_size_count", 3.0, M),
        ("starling_batch_size_sum", 9.0, M),
    ]
