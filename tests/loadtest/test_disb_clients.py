"""DISB: clients against a server."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from generator.made import MS
from generator.scripted import Scripted, Server, http, model, serving, v2

from experiments.disb.client import clients
from experiments.disb.client.clients import Clients, WorkloadPlan
from experiments.disb.client.figures import Outcome, by_class
from experiments.disb.client.workload import Load, Task, Workload

# A workload over HTTP, against a server in this loop: what is sent, when, and what is made of the answers.


PERIODIC = Task("camera_rt", Load("periodic", 100.0), "m")
CLOSED = Task("bulk_be", Load("continuous"), "m", klass="best_effort")


@pytest.fixture(autouse=True)
def _a_moment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ALONE_S", 0.01)


def plan(server: Server, *tasks: Task, time_s: float = 0.1, **options: Any) -> WorkloadPlan:
    return WorkloadPlan(**{"url": server.url, "workload": Workload("w", time_s, tasks), **options})


async def play(plan: WorkloadPlan) -> tuple[tuple[Outcome, ...], array[int]]:
    """Each task alone, then all of them."""
    numbers = range(len(plan.workload.tasks))
    async with Clients(plan) as started:
        alone_ms = [await started.alone(number) for number in numbers]
        return await started.play(plan.workload, plan.seed, numbers, alone_ms)


def answer(connection: Scripted, request: bytes) -> bytes:
    return http(v2())


def head(request: bytes) -> dict[str, Any]:
    """The JSON before the binary tensors."""
    lines, _, body = request.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in lines.split(b"\r\n")[1:])
    return json.loads(body[: int(fields[b"inference-header-content-length"])])


async def test_tasks_run_beside_one_another() -> None:
    async with serving(model(answer)) as server:
        (first, second), lags = await play(plan(server, PERIODIC, CLOSED))
    assert {due // MS for due in first.played.due} <= set(range(0, 100, 10))
    assert len(first.played.due) + first.played.dropped == 10
    assert first.played.right == [True] * len(first.played.due)
    assert second.played.launched[1:] >= second.played.ended[:-1]
    assert second.played.ended[-1] >= 100 * MS
    assert first.alone_ms is not None
    assert len(lags) <= 10  # of requests with an instant alone
    found = by_class((first, second), 0.1)
    assert set(found) == {"realtime", "best_effort", "all"}
    assert found["all"]["completed"] == len(first.played.due) + len(second.played.due)
    assert found["all"]["errors"] == 0


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
