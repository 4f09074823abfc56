"""The soak: its faults are those of its seed, memory that grows is found, whatever is lost is told, and a short one."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loadtest.common import experiment
from loadtest.soak import __main__ as soak
from loadtest.soak import faults
from loadtest.soak.memory import Trend, trend


def readings(seconds: int, per_hour: float = 0.0, seed: int = 0, noise: float = 0.3) -> tuple[list[float], list[float]]:
    """Of a process whose memory comes in steps that stay, once a second."""
    random = np.random.default_rng(seed)
    at = np.arange(seconds, dtype=float)
    steps = np.repeat(random.normal(0, noise, seconds // 10 + 1), 10)[:seconds]
    return at.tolist(), (300 + per_hour / 3600 * at + steps).tolist()


def judged(*given: Any, **more: Any) -> Trend:
    found = trend(*readings(*given, **more), 60)
    assert found is not None
    return found


def test_noise_is_flat_whatever_its_seed() -> None:
    verdicts = [judged(1800, seed=seed) for seed in range(40)]
    assert all(one.flat for one in verdicts)
    assert sum(one.low <= 0 <= one.high for one in verdicts) >= 32  # 38 expected


@pytest.mark.parametrize("per_hour", [3.0, 12.0])
def test_a_leak_is_found(per_hour: float) -> None:
    for seed in range(10):
        found = judged(1800, per_hour, seed=seed)
        assert not found.flat
        assert found.low <= per_hour <= found.high or abs(found.per_hour - per_hour) < 1
        assert found.grown == pytest.approx(per_hour * 1740 / 3600, abs=0.6)


def test_the_model_fails_on_the_rows_that_are_sent_to_fail() -> None:
    marked = importlib.import_module("loadtest.soak.model.model")
    assert marked.MARKER == faults.MARKER
    rows = torch.tensor([json.loads(faults.body(first))["inputs"][0]["data"] for first in (1.0, faults.MARKER)])
    assert marked.Marked()(rows[:1]).shape == (1, faults.WIDTH)
    with pytest.raises(ValueError, match="marked"):
        marked.Marked()(rows)


def test_faults_are_those_of_the_seed() -> None:
    one = faults.schedule(1800, 7)
    assert one == faults.schedule(1800, 7) != faults.schedule(1800, 8)
    assert one == sorted(one)
    assert all(0 <= fault.at_s < 1800 for fault in one)
    counted = Counter(fault.kind for fault in one)
    for kind, gap_s in faults.GAPS_S.items():
        assert counted[kind] == pytest.approx(1800 / gap_s, rel=0.25)
    assert set(Counter(fault.kind for fault in faults.schedule(5, 0))) == {*faults.GAPS_S, "reload"}


def data(**changed: Any) -> dict[str, Any]:
    at, mib = readings(600)
    load = {
        "requests": 10, "completed": 10, "errors": {}, "examples": {},
        "stretches": [{"at_s": 0.0, "requests": 10, "p50": 1.0, "p99": 2.0, "max": 3.0}],
    }  # fmt: skip
    return {
        "facts": {"cores": "2"},
        "settings": {"seconds": 600.0, "seed": 0, "share": 0.6, "slo_ms": 50.0, "beside": 20.0, "grace": 3.0,
                     "settle_s": 60.0, "given": False, "rehearsed": 40},
        "peak": 1000.0, "rate": 600.0, "load": load, "beside": load,
        "faults": {"sent": {"leave": 3, "reload": 1}, "wrong": {}, "reloads_s": [0.5]},
        "replacements": [{"at_s": 9.0, "ready_s": 3.0, "exit": 0, "life_s": 5.0, "ended_s": 3.5}],
        "memory": {"at_s": at, "mib": mib, "threads": [6] * 600, "descriptors": [20] * 600},
        "left": {"starling_queue_length": 0.0}, "exit": 0,
        **changed,
    }  # fmt: skip


@pytest.mark.e2e
def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six seconds with a fault of each kind, at a given rate. Memory takes minutes: `make soak`."""
    monkeypatch.setattr(soak, "FLAGS", (*soak.FLAGS, "--policy", "no_wait"))  # whose control tables take no time
    monkeypatch.setattr(soak, "GRACE_S", 1.5)
    status = soak.EXPERIMENT.main(
        ["--seconds", "6", "--peak", "150", "--budget", "0", "--rehearse", "1", "--out", str(tmp_path)]
    )
    found = experiment.load(tmp_path / "soak.json")
    assert soak.missed(found) == []
    assert status == 0
    assert set(found["faults"]["sent"]) == {*faults.GAPS_S, "reload"}
    assert found["load"]["requests"] == found["load"]["completed"] > 300
    assert {one["exit"] for one in found["replacements"]} == {0}  # one, or more on a busy machine
