"""The command: what it prints, its exit status, and what it says of a bad option. Nothing is sent anywhere."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from bench.made import MS

from loadtest.disb import __main__ as command
from loadtest.disb.clients import WorkloadPlan, WorkloadResult
from loadtest.disb.figures import Outcome
from loadtest.disb.schedule import Played
from loadtest.disb.workload import Load, Task, Workload

URL = "localhost:1"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[WorkloadPlan]:
    """The plans that were to be run; each gives one answer."""
    given: list[WorkloadPlan] = []

    async def play(plan: WorkloadPlan) -> WorkloadResult:
        given.append(plan)
        played = Played(plan.workload.tasks[0], [0], [0], [MS], [True])
        return WorkloadResult(plan, (Outcome(played),), array("q"))

    monkeypatch.setattr(command, "play", play)
    return given


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "w.json"
    tasks = [
        {"id": "a_rt", "load": {"type": "periodic", "frequency": 10}, "client": {"model_name": "vgg"}},
        {"id": "b_be", "load": {"type": "continuous"}},
    ]
    path.write_text(json.dumps({"time": 60, "tasks": tasks}))
    return str(path)


def test_options_reach_the_plan(plans: list[WorkloadPlan], file: str) -> None:
    options = (
        "--scale", "0.5", "--map", "vgg=mlp", "--map", "b_be=echo", "--duration", "3", "--classes", "priority",
        "--warmup", "1", "--seed", "4", "--lengths", "8", "--timeout", "5", "--header", "A: b", "--check", "shapes",
        "--max-lag-ms", "3",
    )  # fmt: skip
    assert command.main([URL, file, *options]) == 0
    tasks = (Task("a_rt", Load("periodic", 5.0), "mlp"), Task("b_be", Load("continuous"), "echo", klass="best_effort"))
    assert plans == [
        WorkloadPlan(
            url=URL, workload=Workload("w", 3.0, tasks), classes="priority", warmup_s=1, seed=4, lengths="8",
            timeout_s=5, headers=("A: b",), check="shapes", max_lag_ms=3,
        )
    ]  # fmt: skip


def test_a_workload_has_its_own_time_and_may_run_in_part(
    plans: list[WorkloadPlan], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([URL, file, "--only", "best_effort", "--json"]) == 0
    assert (plans[0].workload.time_s, [task.id for task in plans[0].workload.tasks]) == (60, ["b_be"])
    assert json.loads(capsys.readouterr().out)["classes"]["all"]["mean_ms"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--map", "x=y"), "map: expected a task or a model of w, one of a_rt, b_be, vgg, got 'x'"),
        (("--classes", "x"), "classes: expected one of none, header, priority, got 'x'"),
    ],
)
def test_bad_option(options: tuple[str, ...], message: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([URL, file, *options]) == 2
    assert capsys.readouterr().err == message + "\n"
