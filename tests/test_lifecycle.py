"""What the probes are told, from the start of a server to its end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.contract import IndexEntry
from app.lifecycle import Lifecycle


def required(name: str, version: str, state: str, reason: str = "") -> IndexEntry:
    return IndexEntry(name, version, state, reason, required=True)


def lifecycle_of(*entries: IndexEntry) -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.catalog = SimpleNamespace(index=lambda: entries)
    return lifecycle


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([required("a", "1", "READY")], None),
        ([required("a", "1", "LOADING"), required("c", "1", "READY")], "a: loading"),
        (
            [required("a", "1", "LOADING"), required("b", "1", "UNAVAILABLE", "model.toml: no inputs")],
            "a: loading; b: failed: model.toml: no inputs",
        ),
        ([required("a", "1", "READY"), required("a", "2", "LOADING")], "a version 2: loading"),
        ([required("a", "1", "UNTRIED", "it raises on every made-up row")], None),
    ],
)
def test_each_model_that_readiness_waits_for_is_named(entries: list[IndexEntry], reason: str | None) -> None:
    assert lifecycle_of(*entries).ready() == reason


def test_the_most_urgent_reason_is_told() -> None:
    lifecycle = lifecycle_of(required("a", "1", "LOADING"))
    lifecycle.stuck = lambda: "hung"
    assert (lifecycle.ready(), lifecycle.live()) == ("hung", "hung")
    lifecycle.fail("worker 0 has died")
    assert (lifecycle.ready(), lifecycle.live()) == ("worker 0 has died", "worker 0 has died")
    lifecycle.closing = True
    assert (lifecycle.ready(), lifecycle.live()) == ("the server is shutting down", "worker 0 has died")
