"""The history has the rates between its samples, for as long as it says."""

from __future__ import annotations

from typing import Any

from app.contract import Klass
from app.observe.metrics import ModelStats
from app.observe.snapshot import Gauges, Snapshot
from app.ui.history import EVERY_US, History, Machine


def gauges(stats: ModelStats, waiting: int = 0) -> Gauges:
    return Gauges(stats, 0, 1, 0.0, 0, waiting={"realtime": waiting, "best_effort": 1})


def answered(stats: ModelStats, ok: int, bad: int) -> ModelStats:
    for outcome, count in (("ok", ok), ("queue_full", bad)):
        for _ in range(count):
            stats.call_answered(outcome, 1, Klass.REALTIME)
    return stats


def samples(history: History) -> list[Any]:
    (model,) = history.as_dict()["models"]
    assert (model["name"], model["version"]) == ("echo", "1")
    found: list[Any] = model["samples"]
    return found


def test_samples_have_rates_and_what_is_used() -> None:
    history, stats = History(), ModelStats("echo", "1")
    assert history.due(0)
    history.add(0, Snapshot([gauges(answered(stats, 50, 5))], []), Machine(1.0, 64, 0))
    assert not history.due(EVERY_US - 1)
    assert history.due(EVERY_US)
    history.add(EVERY_US, Snapshot([gauges(answered(stats, 20, 5), 7)], []), Machine(16.0, 128, 256))
    assert samples(history) == [[0, 0, 0, 1], [2, 0.5, 7, 1]]
    assert history.as_dict()["process"] == [[0, 64, 0], [1.5, 128, 256]]
