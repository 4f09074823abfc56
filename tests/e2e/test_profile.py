"""A server without a profile measures one when it is ready, shows it, and the next server starts with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .server import Server, eventually

pytestmark = pytest.mark.e2e


def profile_of(server: Server) -> dict[str, Any]:
    (stats,) = server.get("/v2/models/narrow/stats").json()["model_stats"]
    shown: dict[str, Any] = stats["starling"]
    return {**shown["profile"], "batch_ms": shown["batch_ms"], "scale": shown["batch_scale"]}


def test_measured_once_and_kept(start: Callable[..., Server], tmp_path: Path) -> None:
    flags = ("--profile-dir", str(tmp_path), "--profile-budget-s", "0.5")
    server = start("narrow", flags=flags)
    for _ in range(20):  # calls are answered while it measures
        assert server.infer("narrow", [[1.0]]).status == 200
    server.line(r"model narrow: measured")
    assert server.slots("narrow") == 0
    measured = profile_of(server)
    assert measured["origin"] == "measured"
    assert set(measured["fit"]) == {"alpha_ms", "beta_ms", "residual"}
    assert measured["scale"] > 0
    eventually(lambda: list(tmp_path.glob("narrow-*.json")))
    assert server.stop() == 0

    (path,) = tmp_path.glob("narrow-*.json")
    assert json.loads(path.read_text())["batch_ms"] == measured["batch_ms"]
    server = start("narrow", flags=flags)
    again = profile_of(server)
    assert (again["origin"], again["made"], again["batch_ms"]) == ("cache", measured["made"], measured["batch_ms"])
