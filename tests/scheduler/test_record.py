"""A record is complete: its entries are plain data, and fed to a fresh Scheduler they give the same Steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.scheduler.record import FORMAT, Entry, RecordingScheduler, feed, scheduler_of, step_entry
from app.scheduler.types import Fault, Klass, Outcome, Profile, Stage, Step, Unit

from .world import make_call, make_device, make_program

PROGRAM = make_program(
    stages=(Stage(Profile((10, 20))), Stage(repeats=True)), policy="window", max_delay_ns=5, length_buckets=(4, 8)
)


def session(entries: list[Entry]) -> list[Step]:
    """Every input once."""
    scheduler = RecordingScheduler(make_device(4, 2, max_alive=9), split_failed=False, sink=entries.append)
    scheduler.add_program(PROGRAM, 0)
    scheduler.submit(make_call(1, lengths=(3, 9), deadline=900, klass=Klass.BEST_EFFORT, priority=2), 1)
    scheduler.submit(make_call(2, arrived=1), 1)
    steps = [scheduler.step(1), scheduler.step(6)]
    scheduler.launched(steps[1].start[0].id, 7)
    scheduler.tick(8)
    for unit in steps[1].start:
        scheduler.finished(Outcome(unit.id, Fault.MODEL if unit.id else None, 30, (0,)), 9)
    scheduler.cancel(2, 9)
    scheduler.remove_program(1, 9)
    return [*steps, scheduler.step(9)]


def test_first_entry_is_the_configuration() -> None:
    entries: list[Entry] = []
    session(entries)
    assert entries[0] == {
        "format": FORMAT,
        "device": {
            "workers": ({"capacity": 4, "priority": 0}, {"capacity": 2, "priority": 0}),
            "max_running": 2,
            "max_alive": 9,
            "push_depth": 1,
        },
        "split_failed": False,
    }
    scheduler = scheduler_of(json.loads(json.dumps(entries[0])))
    assert scheduler.device == make_device(4, 2, max_alive=9)
    assert not scheduler.split_failed


def test_inputs_and_steps_are_recorded_in_order() -> None:
    entries: list[Entry] = []
    session(entries)
    names = [entry.get("in", "step") for entry in entries[1:]]
    assert names[:7] == ["add_program", "submit", "submit", "step", "step", "launched", "tick"]
    assert names[7:] == ["finished"] * (len(names) - 10) + ["cancel", "remove_program", "step"]


@pytest.mark.parametrize(
    "through", [lambda entry: entry, lambda entry: json.loads(json.dumps(entry))], ids=["data", "json"]
)
def test_feed_gives_equal_steps(through: Any) -> None:
    entries: list[Entry] = []
    session(entries)
    scheduler = scheduler_of(through(entries[0]))
    for entry in map(through, entries[1:]):
        if "step" in entry:
            assert through(step_entry(scheduler.step(entry["t"]), entry["t"])) == entry
        else:
            feed(scheduler, entry)


def test_step_is_named_by_calls_and_row_indexes() -> None:
    call, other = make_call(7, 2), make_call(8)
    for row in call.rows:
        row.call = call
    call.rows[1].index = 1
    unit = Unit(3, 0, 1, 0, [call.rows[1], call.rows[0]], 4, "idle", 5, 10)
    assert step_entry(Step([unit], [other], [], 99), 5) == {
        "t": 5,
        "step": {
            "start": [[3, 0, 1, 0, [[7, 1], [7, 0]], 4, 1, "idle"]],
            "done": [8],
            "drop": [],
            "wake_at": 99,
        },
    }


@pytest.mark.parametrize("header", [{"format": FORMAT + 1}, {}], ids=["other", "none"])
def test_other_formats_are_refused(header: Entry) -> None:
    with pytest.raises(ValueError, match="expected format 1"):
        scheduler_of(header)


def test_unknown_input_is_refused() -> None:
    entries: list[Entry] = []
    session(entries)
    with pytest.raises(ValueError, match="unknown input 'sleep'"):
        feed(scheduler_of(entries[0]), {"in": "sleep", "t": 0})
