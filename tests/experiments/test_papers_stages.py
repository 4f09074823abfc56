"""DVABatch's and Late Batching's experiments: the models' arithmetic, and a page made from a tiny run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.scheduler.types import Formed, Row, Unit
from experiments.common.networks import FAST, Network
from experiments.papers import stages, stages_cells, stages_runs
from experiments.papers.stages_gpu import StagesGpu

MS = 1_000_000


def test_a_stage_takes_its_share_of_the_rows_or_of_a_full_gpu() -> None:
    profile = Network("net", 4.0, (8.0, 1.0), 0.5).profile()
    assert [stage.batch_ns[size - 1] / MS for stage in profile.stages for size in (1, 8, 64)] == [
        16.5, 16.5, 128.5, 2.5, 16.5, 128.5,
    ]  # fmt: skip
    assert profile.batch_ns[0] == 19 * MS


def test_times_of_rows_with_a_length_are_in_proportion_to_it() -> None:
    profile = Network("bert", 2.0, (1.0,), 0.0, lengths="fixed:64").profile()
    assert profile.stages[0].time(64, 128) == pytest.approx(128 * MS)
    assert profile.stages[0].time(64, 64) == profile.batch_ns[63] == 64 * MS
    assert profile.time(64, 128) == profile.stages[0].time(64, 128)


def test_units_run_side_by_side_until_the_gpu_is_full() -> None:
    """Two units of 4 of 8 rows fill it, one of 8 does alone; a second unit of a stage waits for its executor."""
    gpu = StagesGpu(Network("net", 4.0, (8.0, 8.0), 0.0))
    units = [Unit(number, number, 1, number % 2, [Row()] * 4, 4, Formed.IDLE, 0, 0) for number in range(3)]
    for unit in units:
        gpu.push(unit, 0)
    assert gpu.due == 16 * MS
    assert gpu.pop(16 * MS) == (units[0], 16 * MS)
    assert gpu.pop(16 * MS) == (units[1], 16 * MS)
    assert gpu.due == 32 * MS
    gpu.push(Unit(3, 3, 1, 1, [Row()] * 8, 8, Formed.IDLE, 0, 0), 16 * MS)
    assert gpu.due == 40 * MS


def test_the_last_step_that_keeps_the_qos() -> None:
    found = ((66.0, 10.0), (347.0, 199.0), (628.0, 201.0), (909.0, 9.0))
    steps = [{"rate": rate, "p99_ms": late} for rate, late in found]
    assert stages_runs.kept(steps) == 347.0
    assert stages_runs.kept(steps[2:]) == 0.0


def test_what_is_doubted_changes_all_stages() -> None:
    unet = FAST[0]
    assert stages.changed(unet, {"fill": 0.5}).fills == (12.0, 12.0, 1.0, 1.0)
    assert stages.changed(unet, {"slow": 4.0}).row_ms == 4 * unet.row_ms
    assert stages.changed(unet, {}) == unet


def test_other_numbers_of_stages_hold_the_same_operators() -> None:
    unet = FAST[0]
    assert stages.in_stages(unet, 2).fills == (24.0, 2.0)
    assert stages.in_stages(unet, 8).fills == (24.0,) * 4 + (2.0,) * 4
    for count in (1, 2, 8):
        cut = stages.in_stages(unet, count)
        launches = 4 * unet.launch_ms + stages.BOUNDARY_MS * (count - 1)
        assert count * cut.launch_ms == pytest.approx(launches)


def test_padded_batches_take_the_steps_of_their_longest_row() -> None:
    step = stages_cells.cell().stages[0]
    assert (step.batch_ns[63], step.batch_ns[127]) == (0.2 * MS, 0.4 * MS)
    for length in (1, 20, 330):
        assert stages_cells.padded().time(128, length) == pytest.approx(length * 0.4 * MS)


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
    assert (
        stages.EXPERIMENT.main(["--requests", "150", "--sequences", "300", "--processes", "1", "--out", str(tmp_path)])
        == 0
    )
    data = json.loads((tmp_path / "stages.json").read_text())
    assert set(data["studies"][0]["loads"]) >= {"ZeroBatch", "DelayBatch", "DVABatch", "adaptive"}
    assert (tmp_path / "stages.png").read_bytes()[:4] == b"\x89PNG"
