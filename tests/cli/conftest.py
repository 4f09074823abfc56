from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from planner import sizing


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are simulated here: the processes for them take seconds to start."""
    monkeypatch.setattr(sizing, "processes", lambda count: nullcontext(SimpleNamespace(map=map)))


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `size`: more change no more than how sure its figures are."""
    monkeypatch.setattr(sizing, "RUNS", 2)
