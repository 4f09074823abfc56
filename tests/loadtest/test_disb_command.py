"""DISB: clients against a server, and the command."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from generator.made import MS
from generator.scripted import Scripted, Server, http, model, serving, v2

from experiments.disb.client import __main__ as command
from experiments.disb.client import clients
from experiments.disb.client.clients import Clients, WorkloadPlan, WorkloadResult, play
from experiments.disb.client.figures import Outcome
from experiments.disb.client.schedule import Played
from experiments.disb.client.workload import Load, Task, Workload
from loadtest.generator.run import Unusable

# The command: what it prints, its exit status, and what it says of a bad option. Nothing is sent anywhere.


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
    assert json.loads(capsys.readouterr().out)["classes"]["all"]["mean_ms"] == 1.0
    assert command.main([URL, file, "--only", "realtime"]) == 0
    told = [(plan.workload.time_s, [task.id for task in plan.workload.tasks]) for plan in plans]
    assert told == [(60, ["b_be"]), (60, ["a_rt"])]


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


# A workload over HTTP, against a server in this loop: what is sent, when, and what is made of the answers.


PERIODIC = Task("camera_rt", Load("periodic", 100.0), "m")
CLOSED = Task("bulk_be", Load("continuous"), "m", klass="best_effort")


@pytest.fixture(autouse=True)
def _any_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server runs in the client's own loop here, on whatever machine; and alone for a moment only."""
    monkeypatch.setattr(clients, "LAG_P99_MS", 1e6)
    monkeypatch.setattr(clients, "ALONE_S", 0.01)


def plan(server: Server, *tasks: Task, time_s: float = 0.1, **options: Any) -> WorkloadPlan:
    workload = Workload("w", time_s, tasks)
    return WorkloadPlan(**{"url": server.url, "workload": workload, "warmup_s": 0.0, **options})


def answer(connection: Scripted, request: bytes) -> bytes:
    return http(v2())


def head(request: bytes) -> dict[str, Any]:
    """The JSON before the binary tensors."""
    lines, _, body = request.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in lines.split(b"\r\n")[1:])
    found: dict[str, Any] = json.loads(body[: int(fields[b"inference-header-content-length"])])
    return found


async def test_tasks_run_beside_one_another() -> None:
    async with serving(model(answer)) as server:
        found = await play(plan(server, PERIODIC, CLOSED))
    first, second = found.outcomes
    assert {due // MS for due in first.played.due} <= set(range(0, 100, 10))
    assert len(first.played.due) + first.played.dropped == 10
    assert first.played.right == [True] * len(first.played.due)
    assert second.played.launched[1:] >= second.played.ended[:-1]
    assert second.played.ended[-1] >= 100 * MS
    assert found.completed == len(first.played.due) + len(second.played.due)
    assert first.alone_ms is not None
    assert len(found.lag_ns) <= 10  # of requests with an instant alone


@pytest.mark.parametrize("told", ["header", "priority"])
async def test_the_server_is_told_of_classes(told: str) -> None:
    """In the order of their first requests, alone: the camera's, then those of the closed loop."""
    async with serving(model(answer)) as server:
        await play(plan(server, PERIODIC, CLOSED, classes=told))
    sent = [request for request in server.requests if request.startswith(b"POST")]
    if told == "header":
        seen = [request.partition(b"X-Class: ")[2].partition(b"\r\n")[0].decode() for request in sent]
    else:
        seen = [{1: "realtime", 2: "best_effort"}[head(request)["parameters"]["priority"]] for request in sent]
    assert set(seen) == {"realtime", "best_effort"}
    assert seen[0] == "realtime"


async def test_errors_are_counted_by_task_and_feed_no_follower() -> None:
    follower = Task("merged", Load("dependent", after=("camera_rt",)), "m")

    def every_second(connection: Scripted, request: bytes) -> bytes:
        return http(v2()) if len(server.requests) % 2 else http({"error": "full"}, 429)

    async with serving(model(answer)) as server, Clients(plan(server, PERIODIC, follower, time_s=0.3)) as started:
        server.script = every_second
        (camera, merged), _ = await started.play(Workload("w", 0.3, (PERIODIC, follower)), 0, (0, 1))
    wrong = [one.errors["status 429"] for one in (camera, merged)]
    assert sum(wrong) > 0
    for one, errors in zip((camera, merged), wrong, strict=True):
        assert one.played.right.count(False) == errors == one.errors.total()
    assert len(merged.played.due) <= sum(camera.played.right)
    assert (camera.examples | merged.examples)["status 429"] == 'status 429: {"error": "full"}'


async def test_a_wrong_answer_is_an_error() -> None:
    posted = 0

    def drifting(connection: Scripted, request: bytes) -> bytes:
        nonlocal posted
        posted += 1
        return http(v2(value=float(posted)))

    async with serving(model(drifting)) as server:
        with pytest.raises(Unusable, match="expected a right answer of 'm', got wrong values"):
            await play(plan(server, CLOSED, time_s=1.0))
        found = await play(plan(server, PERIODIC, check="shapes"))
    assert found.completed > 0
