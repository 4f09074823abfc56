"""What requests cost is measured at a server of its own, which is started and ended for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import app.models.demo.digits as digits
from app.bench import front

pytestmark = pytest.mark.e2e

JPEG = Path(digits.__file__).parent / "samples" / "3.jpg"


def test_the_cost_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_WARM_S", 0.1)
    monkeypatch.setattr(front, "_RUN_S", 0.3)
    monkeypatch.setenv("STARLING_API_KEY", "secret")  # of another server
    flags = ["--models", "demo", "--profile-budget-s", "0", "--policy", "no_wait"]
    times = [2_000_000] * 32
    found, loads = front.measure_front("digits", flags, times, 0, data=JPEG)
    assert 5_000 < found.call_ns < 50_000_000  # of its CPU, so that a busy machine does not matter
    assert found.decode_ns > 50_000  # on a helper thread
    assert (found.group_ns, found.batch_ns >= 0, len(loads)) == (0, True, 4)
    assert min(found.spread, *(load.over(times) for load in loads)) > 0
