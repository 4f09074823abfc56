"""A record is complete: its entries are plain data, and fed to a fresh Scheduler they give the same Steps."""

from __future__ import annotations

from inspect import signature

import pytest

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.record import FORMAT, INPUTS, Entry, RecordingScheduler, feed, scheduler_of, step_entry
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Fault, Klass, Outcome, Profile, Stage, Step, Unit

from .world import make_call, make_device, make_program

PROGRAM = make_program(
    stages=(Stage(Profile((10, 20))), Stage(repeats=True)), policy="window", max_delay_ns=5, length_buckets=(4, 8)
)


OTHER = make_program(2, batch_ns=(10, 20))
TABLES = ControlTables((0.1, 0.9), ((0, 1, 1), (0, 1, 2)), 2, (1, 2), 1e8, 2)


def session(entries: list[Entry]) -> list[Step]:
    """Every input once."""
    scheduler = RecordingScheduler(make_device(4, 2, max_alive=9), sink=entries.append)
    scheduler.add_program(PROGRAM, 0)
    scheduler.add_program(OTHER, 0)
    scheduler.submit(make_call(1, lengths=(3, 9), deadline=900_000_000, klass=Klass.BEST_EFFORT, priority=2), 1)
    scheduler.submit(make_call(2, arrived=1), 1)
    steps = [scheduler.step(1), scheduler.step(6)]
    scheduler.refused(2, 3, 8)
    scheduler.tick(8)
    scheduler.reprofile(2, Profile((30, 40), ((50, 60),)), 8)
    scheduler.control(2, TABLES, 8)
    scheduler.bound(2, 5, 8)
    scheduler.submit(make_call(3, program=2, arrived=8), 8)
    scheduler.control(2, None, 8)
    scheduler.extend(3, 50, 8)
    for unit in steps[1].start:
        scheduler.finished(Outcome(unit.id, Fault.MODEL if unit.id else None, 30, (0,)), 9)
    scheduler.cancel(2, 9)
    scheduler.remove_program(1, 9)
    return [*steps, scheduler.step(9)]


def test_every_input_is_recorded() -> None:
    methods = {name: method for name, method in vars(Scheduler).items() if not name.startswith("_")}
    timed = {name for name, method in methods.items() if callable(method) and "now" in signature(method).parameters}
    assert timed - {"admit", "step"} == set(INPUTS)  # the one changes nothing, the other is the output


def test_step_is_named_by_calls_and_row_indexes() -> None:
    call, other = make_call(7, 2), make_call(8)
    for index, row in enumerate(call.rows):
        row.call, row.order = call, (0, 0, index)
    unit = Unit(3, 0, 1, 0, [call.rows[1], call.rows[0]], 4, "idle", 5)
    assert step_entry(Step([unit], [other], [], 99), 5) == {
        "t": 5,
        "step": {
            "start": [[3, 0, 1, 0, [[7, 1], [7, 0]], 4, 1, "idle"]],
            "done": [8],
            "drop": [],
            "wake_at": 99,
            "recall": [],
            "end_at_next_row": [],
        },
    }


@pytest.mark.parametrize("header", [{"format": FORMAT + 1}, {}], ids=["other", "none"])
def test_other_formats_are_refused(header: Entry) -> None:
    with pytest.raises(ValueError, match=f"expected format {FORMAT}"):
        scheduler_of(header)


def test_unknown_input_is_refused() -> None:
    entries: list[Entry] = []
    session(entries)
    with pytest.raises(ValueError, match="unknown input 'sleep'"):
        feed(scheduler_of(entries[0]), {"in": "sleep", "t": 0})
