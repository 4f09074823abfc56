"""`adaptive` on stages against the whole model: a page made from a tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.scheduler.estimates.profile import linear
from experiments.stages import sliced

PROFILE = linear(7, 0.6, 8)


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced, "cases", lambda: {"cut": sliced.equal(PROFILE, 2)})
    monkeypatch.setattr(sliced, "LOADS", (0.3, 0.9))
    arguments = ["--requests", "300", "--seeds", "2", "--out", str(tmp_path)]
    assert sliced.EXPERIMENT.main(arguments) == 0
    text = (tmp_path / "sliced.md").read_text()
    assert "| cut | " in text
