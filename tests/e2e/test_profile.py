"""What a server measures: the profile of a model, and what requests cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from background import eventually

from loadtest.generator import front_loads

from .server import DEMO, Server


def test_measured_once_and_kept(start: Callable[..., Server], tmp_path: Path) -> None:
    """By a server without a profile when it is ready; the next one starts with it."""
    flags = ("--profile-dir", str(tmp_path), "--profile-budget-s", "0.5")

    def shown(server: Server) -> tuple[str, str, list[float]]:
        (stats,) = server.get("/v2/models/narrow/stats").json()["model_stats"]
        profile = stats["starling"]["profile"]
        return profile["origin"], profile["made"], stats["starling"]["batch_ms"]

    server = start("narrow", flags=flags)
    server.line(r"model narrow: measured")
    origin, made, times = shown(server)
    assert origin == "measured"
    eventually(lambda: list(tmp_path.glob("narrow-*.json")))
    assert server.stop() == 0
    assert shown(start("narrow", flags=flags)) == ("cache", made, times)


def test_the_cost_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured at a server of its own, which is started and ended for it."""
    monkeypatch.setattr(front_loads, "_WARM_S", 0.2)  # the first call of the lowest rate comes within it
    monkeypatch.setattr(front_loads, "_RUN_S", 0.3)
    monkeypatch.setenv("STARLING_API_KEY", "secret")  # of another server
    flags = ["--models", "demo", "--profile-budget-s", "0", "--policy", "no_wait"]
    times = [2_000_000] * 32
    jpeg = DEMO / "digits" / "samples" / "3.jpg"
    found, loads = front_loads.measure_front("digits", flags, times, 0, data=jpeg)
    assert 5_000 < found.call_ns < 50_000_000  # of its CPU, so that a busy machine does not matter
    # On a helper thread. Runs this short cannot always tell whose cost it is: the request's or its group's.
    assert found.decode_ns + found.group_ns > 50_000
    assert min(found.group_ns, found.batch_ns) >= 0
    assert len(loads) == 4
    assert min(min(load.spread, load.over(times), load.busy) for load in loads) > 0
