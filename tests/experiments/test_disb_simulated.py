"""The modelled GPU, clients in virtual time, and a page made from a tiny run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.scheduler.types import Call, Formed, Klass, Row, Unit
from experiments.disb import simulated
from experiments.disb.generate import FOLDER, MODELS
from experiments.disb.gpu import LAUNCH_US, LEFT, SHARED, ModelledGpu, Sharing
from experiments.disb.modelled import NETWORKS, SLOWER, WHOLE, Network, pairs
from experiments.disb.simulated import COLUMNS, Assumed, Column, alone_ns
from experiments.disb.virtual import Played
from loadtest.disb.workload import Load, Task, Workload, read

MS = 1_000_000
LAUNCH = round(1000 * LAUNCH_US)
VGG_RT = Task("vgg19_rt", Load("periodic", 100.0), "vgg19")
RESNET_BE = Task("resnet152_be", Load("continuous"), "resnet152", klass="best_effort")


@pytest.mark.parametrize("known", NETWORKS, ids=lambda known: known.name)
def test_a_models_kernels_add_up_to_its_latency(known: Network) -> None:
    assert len(known.kernel_ns()) == known.kernels == len(known.groups(1))
    assert sum(known.kernel_ns()) == pytest.approx(known.total_ms * MS)
    assert known.groups(WHOLE) == (round(known.total_ms * MS),)
    assert len(known.groups(4)) == -(-known.kernels // 4)
    assert sum(known.groups(4)) == pytest.approx(known.total_ms * MS, abs=known.kernels)
    assert known.name in MODELS


def test_pairs_have_the_published_mean_and_most() -> None:
    found = pairs(SLOWER)
    assert set(found) == {(one, other) for one in MODELS for other in MODELS}
    assert sum(found.values()) / len(found) == pytest.approx(SLOWER, rel=0.01)
    assert max(found.values()) == found["densenet201", "vgg19"] == pytest.approx(3 * SLOWER, rel=0.05)
    assert found["vgg19", "resnet152"] < SLOWER / 2


REAL, BEST = Klass


def unit(number: int, klass: Klass, program: int = 1, **options: Any) -> Unit:
    row = Row(length=3)
    row.call = Call(number, program, [row], klass, 0, 0, None)
    given = {"worker": number, "stage": 0, **options}
    return Unit(
        number, program=program, rows=[row], size=1, reason=Formed.FULL, started=0, predicted=0, klass=klass, **given
    )


def gpu() -> ModelledGpu:
    """Programs 1 and 2 have stages of 1000 each, 4 of them."""
    return ModelledGpu({1: [1000] * 4, 2: [1000] * 4}, Sharing())


class TestGpu:
    def test_equals_slow_one_another(self) -> None:
        device = gpu()
        device.push(unit(1, REAL, steps=2), 0)
        device.push(unit(2, BEST, steps=4), 0)
        assert device.due == round(2000 * (1 + SHARED))
        assert device.pop(device.due).unit.id == 1
        assert device.due == round(2000 * (1 + SHARED)) + 2000

    def test_padding_has_what_is_left_and_slows_as_its_pair_says(self) -> None:
        sharing = Sharing(priorities=True, slower={(1, 2): 0.01})
        real, pad = sharing.speeds([unit(1, REAL), unit(2, BEST, 2)])
        assert real == pytest.approx(1 / 1.01)
        assert pad == pytest.approx(LEFT * (2 / (1 + SHARED) - 1))
        assert real + pad == pytest.approx(1.41, abs=0.02)  # what it is fitted to

    def test_what_began_before_shares_as_an_equal_unless_blocks_make_way(self) -> None:
        running = [unit(2, BEST, 2), unit(1, REAL)]
        assert Sharing(priorities=True).speeds(running) == [pytest.approx(1 / (1 + SHARED))] * 2
        assert Sharing(priorities=True, yields=True).speeds(running)[1] == 1

    @pytest.mark.parametrize(("after", "made"), [(1, 1), (999, 1), (1001, 2), (3500, 4)])
    def test_a_recalled_unit_ends_with_the_stage_that_runs(self, after: int, made: int) -> None:
        device = gpu()
        device.push(going := unit(1, BEST, steps=4), 0)
        device.recall(going, after)
        assert device.due == 1000 * made
        assert device.pop(1000 * made) == (going, 1000 * made, [1000] * made)


def play(column: Column, *tasks: Task, time_s: float = 0.5, assumed: Assumed | None = None) -> Played:
    return column.play(Workload("w", time_s, tasks), 0, assumed)


SEQ, STREAMS, REEF = (COLUMNS[name] for name in ("seq", "streams", "reef"))
ALONE = Assumed(pads=False)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_real_time_request_alone_is_one_unit(name: str) -> None:
    played = play(COLUMNS[name], VGG_RT)
    assert set(played.outcomes[0].latency_ns.tolist()) == {alone_ns(VGG_RT)} == {4.4 * MS + LAUNCH}
    assert played.units == 50
    assert set(played.wait_ns["vgg19_rt"]) == {LAUNCH}


def test_seq_lets_a_request_wait_for_the_rest_of_a_model() -> None:
    assert max(play(SEQ, VGG_RT, RESNET_BE).wait_ns["vgg19_rt"]) > 10 * MS


def test_streams_knows_no_classes() -> None:
    played = play(STREAMS, VGG_RT, RESNET_BE)
    assert set(played.wait_ns["vgg19_rt"]) == {LAUNCH}
    slow = round(4.4 * MS * (1 + SHARED)) + LAUNCH
    assert all(slow - LAUNCH < latency <= slow for latency in played.outcomes[0].latency_ns)  # less while one launches


def test_reef_starts_real_time_at_once_and_ends_best_effort_with_its_kernel() -> None:
    played = play(REEF, VGG_RT, RESNET_BE, assumed=ALONE)
    assert set(played.wait_ns["vgg19_rt"]) == {LAUNCH}
    assert (played.outcomes[0].latency_ns < 1.02 * alone_ns(VGG_RT)).all()
    answers = sum(len(outcome.played.due) for outcome in played.outcomes)
    assert answers < played.units <= answers + 50  # a recall for each real-time request at most


def test_padding_does_best_effort_work_in_real_time_mode() -> None:
    def answers(assumed: Assumed) -> int:
        return len(play(REEF, VGG_RT, RESNET_BE, time_s=0.4, assumed=assumed).outcomes[1].latency_ns)

    assert answers(Assumed()) > 1.2 * answers(ALONE)
    assert answers(Assumed(slower=0.5)) == answers(ALONE)  # no pair keeps the bound


def test_rows_of_one_request_are_answered_together_and_followers_wait_for_them() -> None:
    """Two rows of VGG are two units; a follower begins when both have ended."""
    pair = Task("pair_rt", Load("periodic", 10.0), "vgg19", rows=2)
    follower = Task("merged", Load("dependent", after=("pair_rt",)), "distilbert")
    for prompt in (True, False):
        first, second = play(SEQ, pair, follower, assumed=Assumed(prompt=prompt)).outcomes
        assert set(first.latency_ns.tolist()) == {2 * alone_ns(VGG_RT)}
        assert second.played.due == first.played.ended
        assert set(second.latency_ns.tolist()) == {alone_ns(follower)}


@pytest.mark.parametrize("name", COLUMNS)
def test_all_columns_answer_everything(name: str) -> None:
    workload = replace(read(FOLDER / "E.json"), time_s=0.1)
    played = COLUMNS[name].play(workload)
    for outcome in played.outcomes:
        task = outcome.played.task
        assert outcome.played.right.count(True) == len(outcome.played.due)
        assert len(played.wait_ns[task.id]) == (len(outcome.played.due) if task.klass == "realtime" else 0)
        assert (outcome.latency_ns >= alone_ns(task) - 1000).all()
    classes = {outcome.played.task.klass for outcome in played.outcomes}
    assert classes == ({"realtime"} if name.startswith("rt_") else {"realtime", "best_effort"})


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "VARIED", ("A",))
    monkeypatch.setattr(simulated, "VARIATIONS", {"as assumed": Assumed(), "no padding": ALONE})
    options = ["--seconds", "0.05", "--workloads", "A,REAL", "--out", str(tmp_path)]
    assert simulated.EXPERIMENT.main(options) == 0
    data = json.loads((tmp_path / "disb-simulated.json").read_text("utf-8"))
    assert len(data["cells"]) == 2 * len(COLUMNS)
    assert len(data["varied"]) == 2
    assert (tmp_path / "disb-simulated.md").exists()
