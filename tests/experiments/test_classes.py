"""Waits behind best-effort work, bulk beside interactive requests, the cost of two checkouts: figures and pages."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bench.run import in_loop
from app.bench.stats import Repeat
from app.engine.device import Job, Ran
from app.models.repository import Repository
from experiments.classes import bulk, preemption
from experiments.common.live import right
from loadtest.common.servers import MeasurementError

MS = 1_000_000


def ran(*stages_ms: int) -> Ran:
    times = tuple(ms * MS for ms in stages_ms)
    return Ran([], 0, sum(times), 0, stages_ns=times if len(times) > 1 else (), steps=len(times))


def test_the_longest_stage_is_that_of_the_largest_median() -> None:
    notes = preemption.Notes()
    job = Job(0, None, [0], 1, stage=2, steps=2, best_effort=True)  # type: ignore[arg-type]  # it is not run
    for times in ((1, 5), (3, 4), (2, 90)):
        notes.ran(job, ran(*times), 100 * MS)
    assert notes.stages == {2: [1 * MS, 3 * MS, 2 * MS], 3: [5 * MS, 4 * MS, 90 * MS]}
    assert notes.longest()[0] == 5 * MS
    assert notes.starts[:4] == [94 * MS, 95 * MS, 93 * MS, 96 * MS]
    assert notes.between(94 * MS, 96 * MS) == 1
    notes.ran(Job(1, None, [0], 1), ran(500), 0)  # type: ignore[arg-type]
    assert notes.longest()[0] == 5 * MS  # a real-time unit is not in its own way
    notes.clear()
    assert notes.stages == {}


def test_the_encoder_is_cut_into_stages_of_as_many_layers(tmp_path: Path) -> None:
    assert preemption.cuts(1) == []
    assert preemption.cuts(4) == [f"bert.encoder.layer.{layer}" for layer in (1, 3, 5)]
    assert len(preemption.cuts(8)) == 7
    for stages in preemption.STAGES:
        assert preemption.write_encoder(tmp_path, stages, tiny=True).folder == tmp_path / f"encoder{stages}"
    assert len(Repository(tmp_path).scan(required=True)) == len(preemption.STAGES)


def test_waits_behind_best_effort_work_of_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "STAGES", (1,))
    chosen = argparse.Namespace(calls=3, rounds=2, gap_ms=1.0, seed=0, quick=True)
    found = in_loop(preemption.rounds(chosen, tmp_path, lambda text: None))
    assert list(found) == ["1"]
    assert [len(one["waits_us"]) for one in found["1"]["rounds"]] == [3, 3]
    data = {"settings": {"layers": 8, "tokens": 16, "waiting": 4, "calls": 3, "rounds": 2, "gap_ms": 1.0},
            "stages": found, "facts": {}}  # fmt: skip
    assert preemption.PAGE.text(data)


def repeat(latency_ms: list[int], batch: list[int], compute_ms: list[int], errors: int = 0) -> Repeat:
    def column(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(values, np.int64) * MS

    return Repeat(
        seed=0, duration_s=1.0, elapsed_s=2.0, intended_ns=column([0, 500, 900, 990][: len(latency_ms)]),
        latency_ns=column(latency_ms), wait_ns=column([]), lag_ns=column([1]), compute_ns=column(compute_ms),
        server_ns=column(latency_ms), queue_ns=column([]), batch=np.array(batch, np.int64), status=Counter(),
        errors=Counter(), examples={"status": "status 429: full"} if errors else {}, unchecked=0,
    )  # fmt: skip


def test_rows_of_a_batch_share_its_computing() -> None:
    run = repeat([20, 20, 50, 20], [2, 2, 1, 1], [100, 100, 300, 100])
    assert bulk.busy(run) == pytest.approx(0.25)  # batches of 100, 300 and 100 ms in 2 s
    told = bulk.realtime_of(run)
    assert (told["requests"], told["p99_ms"], told["batch"]) == (4, 50, pytest.approx(4 / 3))
    assert bulk.best_effort_of(run)["per_s"] == 3  # the last answer comes after the end
    with pytest.raises(MeasurementError, match="reef: status 429: full"):
        right("reef", repeat([1], [1], [1], errors=1))
