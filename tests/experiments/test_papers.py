"""The papers' experiments: the GPU model against the simulator's device, and pages made from tiny runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from app.scheduler.types import Formed, Unit
from app.sim.device import Device
from experiments.common.simulated import Policy
from experiments.papers import adaptive_batching, ebird
from experiments.papers.modelled_gpu import NETWORKS, Network, SharedSms

NETWORK = Network("net", 50, 1.0)  # 2 ms of launches, 1 ms an image from 4 images on


def unit(number: int, worker: int, size: int) -> Unit:
    return Unit(number, worker, 1, 0, [], size, Formed.IDLE, 0, 0)


# the GPU


def test_shared_sms_agree_with_the_profile_for_equal_units() -> None:
    """What the policy is told (`concurrency`) is what the device does; the simulator's own Device says the same."""
    for size in (1, 8, 32):
        for units in (1, 2, 6):
            ends = []
            for device in (SharedSms(NETWORK), Device(NETWORK.profile(), units)):
                for number in range(units):
                    device.push(unit(number, number, size), 0)
                last = 0
                while device.due is not None:
                    last = device.due
                    device.pop(last)
                ends.append(last)
                assert device.busy_ns == last
            assert abs(ends[0] - ends[1]) <= units


# Ebird


def test_ebird_waits_for_a_small_worker_where_others_fill_a_large_one_partly() -> None:
    """Trap S1: the third and later of a burst of rows find 1, 1 and 2 taken and 4, 8, 16 too large."""
    burst = np.array([0, 1, 2, 3, 4, 5]) * 1000
    latencies = {
        name: ebird.starling(NETWORK, Policy(name), (1, 1, 2, 4, 8, 16)).latency_ms(burst)
        for name in ("ebird", "no_wait")
    }
    assert latencies["ebird"].max() > latencies["no_wait"].max()


def test_ebird_page_and_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ebird, "NETWORKS", [network for network in NETWORKS if network.name == "ResNet-152"])
    monkeypatch.setattr(ebird, "DOUBTS", {"as assumed": {}})
    monkeypatch.setattr(ebird, "DELAYS", (5.0,))
    alike, against = list(ebird.CORNERS.items())[-2:]
    corners = {"as assumed": {"": {}}, "copy rate": {"12 GB/s": {"copy_gb_s": 12.0}}, **dict((alike, against))}
    monkeypatch.setattr(ebird, "CORNERS", corners)
    assert ebird.EXPERIMENT.main(["--seeds", "2", "--stable", "2", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "ebird.json").read_text())
    (study,) = data["studies"]
    assert set(study["burst"]["ebird"]) >= {"low_ms", "high_ms", "high_p99_ms", "over_qos"}
    assert data["facts"]["cores"]
    for name in ("ebird-steps", "ebird-burst", "ebird-throughput"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


# adaptive batching


def test_adaptive_batching_page_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_batching, "NETWORKS", adaptive_batching.NETWORKS[1:2])
    monkeypatch.setattr(adaptive_batching, "WEIGHTS", (0.9,))
    arguments = ["--seeds", "1", "--seconds", "4", "--out", str(tmp_path)]
    assert adaptive_batching.EXPERIMENT.main(arguments) == 0
    assert len(json.loads((tmp_path / "adaptive_batching.json").read_text())["studies"]) == 2
    assert (tmp_path / "adaptive_batching.png").read_bytes()[:4] == b"\x89PNG"
