"""What a server measures: the profile of a model, and what requests cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from background import eventually

import app.models.demo.digits as digits
from loadtest.generator import front_loads

from .server import Server

# A server without a profile measures one when it is ready, shows it, and the next server starts with it.


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


# What requests cost is measured at a server of its own, which is started and ended for it.


JPEG = Path(digits.__file__).parent / "samples" / "3.jpg"


def test_the_cost_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_loads, "_WARM_S", 0.1)
    monkeypatch.setattr(front_loads, "_RUN_S", 0.3)
    monkeypatch.setenv("STARLING_API_KEY", "secret")  # of another server
    flags = ["--models", "demo", "--profile-budget-s", "0", "--policy", "no_wait"]
    times = [2_000_000] * 32
    found, loads = front_loads.measure_front("digits", flags, times, 0, data=JPEG)
    assert 5_000 < found.call_ns < 50_000_000  # of its CPU, so that a busy machine does not matter
    # On a helper thread. Runs this short cannot always tell whose cost it is: the request's or its group's.
    assert found.decode_ns + found.group_ns > 50_000
    assert (found.group_ns >= 0, found.batch_ns >= 0, len(loads)) == (True, True, 4)
    assert min(min(load.spread, load.over(times), load.busy) for load in loads) > 0
