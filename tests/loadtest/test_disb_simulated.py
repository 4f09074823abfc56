"""The modelled GPU, clients in virtual time, and a page made from a tiny run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.bench.workload import Load, Task, Workload, read
from app.scheduler.types import Formed, Program, Row, Unit
from loadtest.disb import simulated, simulated_page
from loadtest.disb.generate import FOLDER, MODELS
from loadtest.disb.modelled import LAUNCH_US, NETWORKS, SHARED, WHOLE, ModelledGpu, Network, network
from loadtest.disb.simulated import COLUMNS, Column, alone_ns
from loadtest.disb.virtual import Played

MS = 1_000_000
LAUNCH = round(1000 * LAUNCH_US)
VGG_RT = Task("vgg19_rt", Load("periodic", 100.0), "vgg19")
RESNET_BE = Task("resnet152_be", Load("continuous"), "resnet152", klass="best_effort")


@pytest.mark.parametrize("known", NETWORKS, ids=lambda known: known.name)
def test_a_models_kernels_add_up_to_its_latency(known: Network) -> None:
    assert len(known.kernel_ns()) == known.kernels == len(known.stages(1))
    assert sum(known.kernel_ns()) == pytest.approx(known.total_ms * MS)
    assert known.stages(WHOLE) == (round(known.total_ms * MS),)
    assert len(known.stages(4)) == -(-known.kernels // 4)
    assert sum(known.stages(4)) == pytest.approx(known.total_ms * MS, abs=known.kernels)
    assert known.name in MODELS


def test_the_kernels_of_vgg_are_spread_about_as_in_the_paper() -> None:
    least, most = (edge(network("vgg19").kernel_ns()) / 1000 for edge in (min, max))
    assert 5 < least < 20
    assert 200 < most < 320


def test_unknown_model_is_named() -> None:
    with pytest.raises(ValueError, match=r"^model: expected one of resnet152, .*, got 'bert'$"):
        network("bert")


def unit(number: int, program: Program) -> Unit:
    return Unit(number, number, program.id, 0, [Row()], 1, Formed.FULL, 0, 0)


def test_units_at_once_slow_one_another() -> None:
    programs = [network("vgg19").program(1, WHOLE), network("resnet152").program(2, WHOLE)]
    device = ModelledGpu(programs)
    for number, program in enumerate(programs):
        device.push(unit(number, program), 0)
    first = device.due
    assert first == pytest.approx(4.4 * MS * (1 + SHARED), abs=2)
    assert device.pop(first)[0].program == 1
    assert device.due == pytest.approx(first + 9.2 * MS, abs=2)  # 4.4 of 13.6 ms are done


def test_a_recalled_unit_ends_with_the_stage_that_runs() -> None:
    program = network("vgg19").program(1, 4)
    first, second, third = network("vgg19").stages(4)[:3]
    for after, made in ((1, 1), (first - 1, 1), (first + 1, 2), (first + second + 1, 3)):
        device = ModelledGpu([program])
        going = replace(unit(0, program), steps=14)
        device.push(going, 0)
        assert device.due == sum(network("vgg19").stages(4))
        device.recall(going, after)
        assert device.due == (first, first + second, first + second + third)[made - 1]
        assert len(device.stage_ns(going)) == made
        assert device.pop(device.due) == (going, device.busy_ns)
        device.forget(going)
        assert len(device.stage_ns(going)) == 14


def play(column: Column, *tasks: Task, time_s: float = 1.0, **options: bool) -> Played:
    return column.play(Workload("w", time_s, tasks), **options)


def test_a_request_alone_takes_its_launches_and_its_kernels() -> None:
    for kernels, units in ((WHOLE, 1), (4, 14), (1, 55)):
        played = play(Column("alone", kernels), VGG_RT)
        assert set(played.outcomes[0].latency_ns.tolist()) == {
            units * LAUNCH + sum(network("vgg19").stages(kernels))
        }  # fmt: skip
        assert played.units == 100 * units
        assert set(played.wait_ns["vgg19_rt"]) == {LAUNCH}
    assert alone_ns(VGG_RT) == 4.4 * MS + LAUNCH


def test_a_real_time_request_waits_for_the_rest_of_one_unit() -> None:
    played = play(Column("c", kernels=4), VGG_RT, RESNET_BE)
    longest = max(network("resnet152").stages(4))
    assert 0 < max(played.wait_ns["vgg19_rt"]) <= longest + 2 * LAUNCH
    whole = play(Column("c"), VGG_RT, RESNET_BE)
    assert max(whole.wait_ns["vgg19_rt"]) > 10 * MS


def test_a_worker_that_goes_on_launches_once_unless_it_is_recalled() -> None:
    alone = play(Column("c", kernels=4, goes_on=True), VGG_RT)
    assert alone.units == 100
    assert set(alone.outcomes[0].latency_ns.tolist()) == {sum(network("vgg19").stages(4)) + LAUNCH}
    both = play(Column("c", kernels=4, goes_on=True), VGG_RT, RESNET_BE)
    answers = sum(len(outcome.played.due) for outcome in both.outcomes)
    assert answers < both.units <= answers + 100  # a recall for each real-time request at most
    assert max(both.wait_ns["vgg19_rt"]) <= max(network("resnet152").stages(4)) + 2 * LAUNCH
    assert both.outcomes[1].latency_ns.sum() > 0


def test_without_priorities_requests_go_in_order_of_arrival() -> None:
    times = [
        play(Column("c", kernels=4, priorities=priorities), VGG_RT, RESNET_BE).outcomes[0].latency_ns.mean()
        for priorities in (True, False)
    ]
    assert times[1] > 1.5 * times[0]


def test_classes_go_first_as_priorities_do() -> None:
    """A column of a preset sets them; to today's scheduler they are one more order."""
    found = [
        play(column, VGG_RT, RESNET_BE).outcomes[0].played.ended
        for column in (Column("p", kernels=4), Column("k", kernels=4, priorities=False, classes=True))
    ]
    assert found[0] == found[1]


def test_every_client_has_a_stream_of_its_own() -> None:
    played = play(Column("s", streams=True, priorities=False), VGG_RT, RESNET_BE)
    assert set(played.wait_ns["vgg19_rt"] + played.wait_ns["resnet152_be"]) == {LAUNCH}
    slow = round(4.4 * MS * (1 + SHARED)) + LAUNCH
    assert all(slow - LAUNCH < latency <= slow for latency in played.outcomes[0].latency_ns)  # less while one launches


def test_a_client_that_is_not_prompt_finds_a_best_effort_unit_before_it() -> None:
    """A best-effort request after each real-time one: 13.6 + 4.4 ms of every 18, more than the period."""
    prompt, late = (play(Column("c"), VGG_RT, RESNET_BE, prompt=prompt).outcomes[0] for prompt in (True, False))
    assert prompt.played.dropped == 0
    assert late.played.dropped > 40
    assert late.latency_ns.mean() > 1.9 * prompt.latency_ns.mean()


def test_rows_of_one_request_are_answered_together_and_followers_wait_for_them() -> None:
    """Two rows of VGG are two units; a follower begins when both have ended."""
    pair = Task("pair_rt", Load("periodic", 10.0), "vgg19", rows=2)
    follower = Task("merged", Load("dependent", after=("pair_rt",)), "distilbert")
    for prompt in (True, False):
        first, second = play(Column("c"), pair, follower, prompt=prompt).outcomes
        assert set(first.latency_ns.tolist()) == {2 * alone_ns(VGG_RT)}
        assert second.played.due == first.played.ended
        assert set(second.latency_ns.tolist()) == {alone_ns(follower)}


def test_the_same_run_gives_the_same_figures() -> None:
    first, again = (simulated.cell(("E", "priority", 0.3)) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("name", COLUMNS)
def test_all_columns_answer_everything(name: str) -> None:
    workload = replace(read(FOLDER / "E.json"), time_s=0.5)
    played = COLUMNS[name].play(workload)
    for outcome in played.outcomes:
        assert outcome.played.right.count(True) == len(outcome.played.due)
        assert len(played.wait_ns[outcome.played.task.id]) == len(outcome.played.due)
        assert (outcome.latency_ns >= alone_ns(outcome.played.task)).all()
    classes = {outcome.played.task.klass for outcome in played.outcomes}
    assert classes == ({"realtime"} if name == "rt_only" else {"realtime", "best_effort"})


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "QUEUES", (4, 64))
    options = ["--seconds", "0.5", "--workloads", "A,REAL", "--columns", "rt_only,seq,handed", "--processes", "1"]
    options += ["--out", str(tmp_path)]
    assert simulated.EXPERIMENT.main(options) == 0
    text = (tmp_path / "disb-simulated.md").read_text("utf-8")
    for words in ("## Throughput of all requests", "SEQ, published", "REEF, published", "## Assumptions", "| REAL |"):
        assert words in text
    data = json.loads((tmp_path / "disb-simulated.json").read_text("utf-8"))
    assert len(data["cells"]) == 2 * 3
    wide, deep = data["queues"]
    assert wide["execution_ms"] > deep["execution_ms"]
    assert wide["wait_p99_ms"] < deep["wait_p99_ms"]
    cells = {(one["workload"], one["column"]): one for one in data["cells"]}
    ratio = simulated_page.latency(cells["A", "seq"]) / simulated_page.latency(cells["A", "rt_only"])
    assert f"| A | {ratio:.2f} | 1.95 |" in text


@pytest.mark.parametrize(
    "options", [("--columns", "seq"), ("--columns", "x"), ("--seconds", "0"), ("--workloads", "F")]
)
def test_bad_options(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        simulated.EXPERIMENT.parse(options)
    assert "expected" in capsys.readouterr().err
