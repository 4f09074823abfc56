"""DVABatch's and Late Batching's experiments: the model of a GPU, and a page made from a tiny run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.common.networks import FAST
from experiments.papers import stages, stages_cells, stages_runs


def test_page_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "FAST", (FAST[2], replace(FAST[4], row_ms=5.0)))  # one of each kind
    monkeypatch.setattr(stages, "DOUBTS", {"as assumed": {}})
    monkeypatch.setattr(stages, "DELAYS", (5.0,))
    monkeypatch.setattr(stages, "TRIED_STAGES", (1, 2))
    monkeypatch.setattr(stages_cells, "SHARES", (0.5,))
    monkeypatch.setattr(stages_cells, "WIDTHS", (40,))
    monkeypatch.setattr(stages_runs, "_STEPS", 1)
    monkeypatch.setattr(stages_runs, "_LEAST_S", 0.0)
    monkeypatch.setattr(stages_runs, "STEPPING", (66.0, 500.0, 2, 100))
    assert stages.EXPERIMENT.main(["--requests", "150", "--sequences", "300", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "stages.json").read_text())
    assert set(data["studies"][0]["loads"]) >= {"ZeroBatch", "DelayBatch", "DVABatch", "adaptive"}
    assert (tmp_path / "stages.png").read_bytes()[:4] == b"\x89PNG"
