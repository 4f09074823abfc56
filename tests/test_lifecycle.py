"""What the probes are told, from the start of a server to its end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.contract import IndexEntry
from app.lifecycle import Lifecycle


class Models:
    """The part of a catalog that readiness asks."""

    def __init__(self, *entries: IndexEntry) -> None:
        self._entries = entries

    def index(self) -> Sequence[IndexEntry]:
        return self._entries


def required(name: str, version: str, state: str, reason: str = "") -> IndexEntry:
    return IndexEntry(name, version, state, reason, required=True)


def told(*entries: IndexEntry) -> str | None:
    lifecycle = Lifecycle()
    lifecycle.catalog = Models(*entries)  # type: ignore[assignment]
    return lifecycle.ready()


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
    assert told(*entries) == reason


def test_the_most_urgent_reason_is_told() -> None:
    lifecycle = Lifecycle()
    lifecycle.catalog = Models(required("a", "1", "LOADING"))  # type: ignore[assignment]
    lifecycle.stuck = lambda: "hung"
    assert (lifecycle.ready(), lifecycle.live()) == ("hung", "hung")
    lifecycle.fail("worker 0 has died")
    assert (lifecycle.ready(), lifecycle.live()) == ("worker 0 has died", "worker 0 has died")
    lifecycle.closing = True
    assert (lifecycle.ready(), lifecycle.live()) == ("the server is shutting down", "worker 0 has died")
