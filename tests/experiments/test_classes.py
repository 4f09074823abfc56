"""Waits behind best-effort work: figures and a page from a tiny run."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from experiments.classes import preemption
from loadtest.generator.run import in_loop


def test_waits_behind_best_effort_work_of_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "STAGES", (1,))
    chosen = argparse.Namespace(calls=3, rounds=2, gap_ms=1.0, seed=0, quick=True)
    found = in_loop(preemption.rounds(chosen, tmp_path, lambda text: None))
    assert list(found) == ["1"]
    assert [len(one["waits_us"]) for one in found["1"]["rounds"]] == [3, 3]
    data = {"settings": {"layers": 8, "tokens": 16, "waiting": 4, "calls": 3, "rounds": 2, "gap_ms": 1.0},
            "stages": found, "facts": {}}  # fmt: skip
    assert preemption.PAGE.text(data)
