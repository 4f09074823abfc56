"""DISB: workloads are read, and their requests have their times."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from experiments.disb.client.schedule import Launch, Played, Players
from experiments.disb.client.workload import Load, Task, Workload, parse

# DISB's format: what is read, and what is said of a file that does not fit.


MS = 1_000_000


def task(ident: str, load: dict[str, Any] | None = None, **client: Any) -> dict[str, Any]:
    return {"id": ident, "load": load or {"type": "continuous"}, "client": client}


def workload(*tasks: dict[str, Any], time: Any = 60) -> dict[str, Any]:
    return {"time": time, "tasks": list(tasks)}


def test_every_kind_of_load() -> None:
    found = parse(
        workload(
            task("camera_rt", {"type": "periodic", "frequency": 100, "priority": 0}, model_name="vgg", batch_size=2),
            task("speech_rt", {"type": "poisson", "frequency": 2.5}),
            task("log", {"type": "trace", "trace": [7, 3, 0.5]}, **{"class": "best_effort"}),
            task("driver_be", {"type": "continuous", "frequency": 220}),
            task("merged", {"type": "dependent", "prev_task_ids": ["camera_rt", "speech_rt"]}, other="kept out"),
        ),
        "a.json",
    )
    assert found == Workload(
        "workload",
        60.0,
        (
            Task("camera_rt", Load("periodic", 100.0), "vgg", 2),
            Task("speech_rt", Load("poisson", 2.5), "speech_rt"),
            Task("log", Load("trace", trace=(MS // 2, 3 * MS, 7 * MS)), "log", klass="best_effort"),
            Task("driver_be", Load("continuous"), "driver_be", klass="best_effort"),
            Task("merged", Load("dependent", after=("camera_rt", "speech_rt")), "merged"),
        ),
    )


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ([], "expected an object"),
        (workload(task("a"), time=0), "time"),
        (workload(), "tasks"),
        (workload(task("a", {"type": "poisson", "frequency": -1})), "tasks.0.load.frequency"),
        (workload(task("a", {"type": "trace", "trace": [1, -1]})), "tasks.0.load.trace.1"),
        (workload(task("a", {"type": "dependent", "prev_task_ids": ["c"]})), "tasks.0.load.prev_task_ids"),
        (workload(*(task(one, {"type": "dependent", "prev_task_ids": [two]}) for one, two in ("ab", "ba"))),
         "tasks: expected tasks that do not depend on themselves"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(given: Any, key: str) -> None:
    with pytest.raises(ValueError, match=r"^f\.json: ") as caught:
        parse(given, "f.json")
    assert str(caught.value).startswith(f"f.json: {key}")
    assert "\n" not in str(caught.value)


# The clients of a workload on a virtual clock, against DISB's rules.
# Invariants, whatever the answers: a task has at most one request at a time; nothing is launched before its instant;
# the launched instant is the newest that had passed; of the instants before the end each is launched or dropped.


S = 1_000_000_000


def play(workload: Workload, service: Callable[[int], int], seed: int) -> list[Played]:
    """Answer the launch of each number after `service(number)` ns."""
    players = Players(workload, seed)
    events: list[tuple[int, int, int, Launch]] = []  # (time, 0 for an answer and 1 for a launch, sequence, launch)
    out: set[int] = set()
    numbers = count(1)

    def plan(launches: list[Launch], now: int) -> None:
        for launch in launches:
            assert launch.at >= max(now, launch.due)
            heappush(events, (launch.at, 1, next(numbers), launch))

    plan(players.begin(), 0)
    while events:
        now, kind, number, launch = heappop(events)
        assert not players.over
        if kind:
            assert launch.task not in out, "two requests of one task"
            out.add(launch.task)
            players.launched(launch, now)
            heappush(events, (now + service(number), 0, number, launch))
        else:
            out.discard(launch.task)
            plan(players.ended(launch.task, now, True), now)
    assert players.over
    return players.played


instants = st.lists(st.integers(0, 1500), max_size=40).map(lambda found: tuple(MS * one for one in sorted(found)))
loads = st.one_of(
    st.builds(lambda f: Load("periodic", float(f)), st.integers(1, 60)),
    st.builds(lambda f: Load("poisson", float(f)), st.integers(1, 60)),
    st.builds(lambda found: Load("trace", trace=found), instants),
)


@repeatable(60)
@given(st.lists(loads, min_size=1, max_size=3), st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers())
def test_the_newest_instant_is_launched_and_the_others_are_dropped(given_loads, times, seed) -> None:
    workload = Workload("w", 1.0, tuple(Task(f"t{number}", load, "m") for number, load in enumerate(given_loads)))
    at_once = play(workload, lambda number: 0, abs(seed))
    found = play(workload, lambda number: MS * times[number % len(times)], abs(seed))
    for one, free_client in zip(found, at_once, strict=True):
        wanted = [due for due in one.task.load.trace if due < S]
        if one.task.load.kind != "trace":  # a client that is always free launches all
            assert (free_client.launched, free_client.dropped) == (free_client.due, 0)
            wanted = free_client.due
        assert len(one.due) + one.dropped == len(wanted)
        assert set(one.due) <= set(wanted)
        for free, due, at in zip([0, *one.ended], one.due, one.launched, strict=False):
            assert at == max(due, free)
            assert not any(due < other < free for other in wanted), "a newer instant had passed"
