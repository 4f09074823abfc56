"""The papers' experiments: pages made from tiny runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.common.networks import FAST
from experiments.common.simulated import Policy
from experiments.papers import adaptive_batching, ebird, ebird_contenders, pictures, stages, stages_cells, stages_runs
from experiments.papers.modelled_gpu import NETWORKS, Network

# The papers' experiments: pages made from tiny runs.


# Ebird


def test_ebird_waits_for_a_small_worker_where_others_fill_a_large_one_partly() -> None:
    """Trap S1: the third and later of a burst of rows find 1, 1 and 2 taken and 4, 8, 16 too large."""
    burst = np.array([0, 1, 2, 3, 4, 5]) * 1000
    latencies = {
        name: ebird_contenders.starling(Network("net", 50, 1.0), Policy(name), (1, 1, 2, 4, 8, 16)).latency_ms(burst)
        for name in ("ebird", "no_wait")
    }
    assert latencies["ebird"].max() > latencies["no_wait"].max()


def test_ebird_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ebird, "NETWORKS", [network for network in NETWORKS if network.name == "ResNet-152"])
    monkeypatch.setattr(ebird_contenders, "DELAYS", (5.0,))
    assert ebird.EXPERIMENT.main(["--seeds", "2", "--stable", "2", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "ebird.json").read_text())
    (study,) = data["studies"]
    assert set(study["burst"]["ebird"]) >= {"low_ms", "high_ms", "high_p99_ms", "over_qos"}
    assert data["facts"]["cores"]


# adaptive batching


def test_adaptive_batching_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_batching, "NETWORKS", adaptive_batching.NETWORKS[1:2])
    arguments = ["--seeds", "1", "--seconds", "4", "--out", str(tmp_path)]
    assert adaptive_batching.EXPERIMENT.main(arguments) == 0
    assert len(json.loads((tmp_path / "adaptive_batching.json").read_text())["studies"]) == 1


# DVABatch's and Late Batching's experiments: the model of a GPU, and a page made from a tiny run.


def test_stages_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "FAST", (FAST[2], replace(FAST[4], row_ms=5.0)))  # one of each kind
    monkeypatch.setattr(stages, "DELAYS", (5.0,))
    monkeypatch.setattr(stages, "TRIED_STAGES", (1, 2))
    monkeypatch.setattr(stages_cells, "SHARES", (0.5,))
    monkeypatch.setattr(stages_cells, "WIDTHS", (40,))
    monkeypatch.setattr(stages_runs, "_STEPS", 1)
    monkeypatch.setattr(stages_runs, "_LEAST_S", 0.0)
    assert stages.EXPERIMENT.main(["--requests", "150", "--sequences", "300", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "stages.json").read_text())
    assert set(data["studies"][0]["loads"]) >= {"ZeroBatch", "DelayBatch", "DVABatch", "adaptive"}


# The pictures


def test_pictures_are_drawn_of_the_schedulers_units(tmp_path: Path) -> None:
    pictures.main(tmp_path)
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert drawn == {path.stem for path in pictures.PAPERS.glob("*.md")}
