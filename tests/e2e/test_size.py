"""What HTTP costs is measured at a server of its own, which is started and ended for it."""

from __future__ import annotations

import pytest

from app.bench import http_cost

pytestmark = pytest.mark.e2e


def test_the_cost_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_cost, "_WARM_S", 0.1)
    monkeypatch.setattr(http_cost, "_RUN_S", 0.3)
    monkeypatch.setenv("STARLING_API_KEY", "secret")  # of another server
    us = http_cost.measure_http_us("echo", ["--models", "demo", "--profile-budget-s", "0"])
    assert 5 < us < 50_000  # of its CPU, so that a busy machine does not matter
