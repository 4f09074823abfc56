"""DISB's format: what is read, and what is said of a file that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.disb.workload import Load, Task, Workload, parse

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
        (
            workload(*(task(one, {"type": "dependent", "prev_task_ids": [two]}) for one, two in ("ab", "ba"))),
            "tasks: expected tasks that do not depend on themselves",
        ),
    ],
)
def test_what_does_not_fit_is_named(given: Any, key: str) -> None:
    with pytest.raises(ValueError, match=r"^f\.json: ") as caught:
        parse(given, "f.json")
    assert str(caught.value).startswith(f"f.json: {key}")
    assert "\n" not in str(caught.value)


def some() -> Workload:
    return parse(
        workload(
            task("a_rt", {"type": "periodic", "frequency": 10}, model_name="m"),
            task("b_be", {"type": "trace", "trace": [0, 100]}, model_name="m"),
            task("c_be", model_name="n"),
            task("d", {"type": "dependent", "prev_task_ids": ["a_rt", "b_be"]}),
        ),
        "f.json",
    )


def test_one_class_alone_is_without_what_follows_the_other() -> None:
    assert [one.id for one in some().only("realtime").tasks] == ["a_rt"]
    assert [one.id for one in some().only("best_effort").tasks] == ["b_be", "c_be"]
