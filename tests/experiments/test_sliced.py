"""`adaptive` on stages against the whole model: how models are cut, and a page made from a tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.scheduler.estimates.profile import ModelProfile, linear
from experiments.stages import sliced

PROFILE = linear(7, 0.6, 8)


@pytest.mark.parametrize("cut", [sliced.equal(PROFILE, 4), sliced.measured(PROFILE, 4, 1)])
def test_the_whole_is_the_sum_of_its_stages(cut: ModelProfile) -> None:
    assert len(cut.stages) == 4
    sums = [sum(times) for times in zip(*(stage.batch_ns for stage in cut.stages), strict=True)]
    assert sums == pytest.approx(cut.batch_ns, rel=1e-6)
    assert sums == pytest.approx(PROFILE.batch_ns, rel=0.15)


def test_measured_stages_differ() -> None:
    first, second = sliced.measured(PROFILE, 2, 1).stages
    assert first.batch_ns != second.batch_ns


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced, "cases", lambda: {"cut": sliced.equal(PROFILE, 2)})
    monkeypatch.setattr(sliced, "LOADS", (0.3, 0.9))
    arguments = ["--requests", "300", "--seeds", "2", "--out", str(tmp_path)]
    assert sliced.EXPERIMENT.main(arguments) == 0
    text = (tmp_path / "sliced.md").read_text()
    assert "| cut | " in text
