"""The papers' experiments: the GPU model's arithmetic, requests in order, and pages made from tiny runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.scheduler.estimates.profile import linear
from app.scheduler.types import Formed, Unit
from app.sim.device import Device
from experiments.common.simulated import FOREVER_MS, Policy, Server, serve, stepped
from experiments.papers import adaptive_batching, ebird
from experiments.papers.modelled_gpu import NETWORKS, SMS, Network, SharedSms

MS = 1_000_000
NETWORK = Network("net", 50, 1.0)  # 2 ms of launches, 1 ms an image from 4 images on


def unit(number: int, worker: int, size: int) -> Unit:
    return Unit(number, worker, 1, 0, [], size, Formed.IDLE, 0, 0)


# the GPU


def test_a_unit_alone_takes_launches_and_the_larger_of_its_images_and_a_full_gpu() -> None:
    assert [NETWORK.alone_ms(size) for size in (1, 4, 32)] == [6, 6, 34]
    assert NETWORK.busy_sms(1) == SMS / 6
    assert NETWORK.profile().batch_ns[31] == 34 * MS


def test_the_joined_batch_pays_join_copy_and_gap() -> None:
    copy = 224 * 224 * 3 * 4 / 3e9 * 1e3
    assert NETWORK.copy_ms == pytest.approx(copy)
    assert NETWORK.joined().batch_ns[7] == pytest.approx((10 + 2 * 8 * copy + 1) * MS, abs=1)


def test_units_that_fit_do_not_slow_one_another_and_no_sm_time_is_lost_beyond() -> None:
    two = NETWORK.profile().concurrency_ns[2]
    assert two[0] == 6 * MS  # a sixth of the SMs each
    assert two[31] == 64 * MS  # 64 images at 1 ms with all SMs busy
    assert replace(NETWORK, contention=0.25).profile().concurrency_ns[2][31] == 80 * MS


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


# requests in order


def test_latencies_are_in_order_of_arrival() -> None:
    """Three requests at 0, 1 and 2 ms on a device of 10 ms: the first alone, the others together after it."""
    instants = np.array([0, 1, 2]) * MS
    served = serve(Server(Policy("no_wait"), linear(10, 0, 4), (4,)), instants)
    assert served.latency_ms.tolist() == [10, 19, 18]
    assert served.tally.units == 2


# Ebird


def test_ebird_waits_for_a_small_worker_where_others_fill_a_large_one_partly() -> None:
    """Trap S1: the third and later of a burst of rows find 1, 1 and 2 taken and 4, 8, 16 too large."""
    burst = np.array([0, 1, 2, 3, 4, 5]) * 1000
    latencies = {
        name: ebird.starling(NETWORK, Policy(name), (1, 1, 2, 4, 8, 16)).latency_ms(burst)
        for name in ("ebird", "no_wait")
    }
    assert latencies["ebird"].max() > latencies["no_wait"].max()


def test_throughput_keeps_the_qos_and_one_step_more_does_not() -> None:
    contender = ebird.baseline(NETWORK, Policy("no_wait"))
    found = ebird.throughput(contender, 1000.0, 10)

    def tail_ms(rate: float) -> float:
        return float(np.quantile(contender.latency_ms(stepped([(round(10 * rate), rate)], 0))[500:], 0.99))

    assert 0.8 * NETWORK.joined().peak < found < 1.1 * NETWORK.joined().peak
    assert tail_ms(0.9 * found) < 200 < tail_ms(1.1 * found)


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


def test_energy_counts_idle_time_and_leaves_out_what_is_kept_for_ever() -> None:
    network = adaptive_batching.Network("n", 9.0, 1.0, 0.0)
    instants = np.array([0, 1, 2]) * 1_000_000_000
    found = adaptive_batching.run(network, Policy("no_wait"), instants)
    joules = 2 * (0.01 * 300 + 0.99 * 100)  # within the trace: two of the three batches of 10 ms
    assert found["per_joule"] == pytest.approx(3 / joules)
    # Two must meet: the first and second do, the third waits for ever.
    instants = np.array([0, 1500, 2500]) * MS
    kept = adaptive_batching.run(network, Policy("preferred", FOREVER_MS), instants)
    assert kept["left"] == 1
    assert kept["mean_ms"] == pytest.approx((1511 + 11) / 2)


def test_adaptive_batching_page_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_batching, "NETWORKS", adaptive_batching.NETWORKS[1:2])
    monkeypatch.setattr(adaptive_batching, "WEIGHTS", (0.9,))
    arguments = ["--seeds", "1", "--seconds", "4", "--out", str(tmp_path)]
    assert adaptive_batching.EXPERIMENT.main(arguments) == 0
    assert len(json.loads((tmp_path / "adaptive_batching.json").read_text())["studies"]) == 2
    assert (tmp_path / "adaptive_batching.png").read_bytes()[:4] == b"\x89PNG"
