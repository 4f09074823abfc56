"""A record is complete: its entries are plain data, and fed to a fresh Scheduler they give the same Steps."""

from __future__ import annotations

from inspect import signature

import pytest

from app.scheduler.record import FORMAT, INPUTS, Entry, RecordingScheduler, step_entry
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Step, Unit
from planner.replay import feed, scheduler_of

from .world import make_call, make_device


def test_every_input_is_recorded() -> None:
    methods = {name: method for name, method in vars(Scheduler).items() if not name.startswith("_")}
    timed = {name for name, method in methods.items() if callable(method) and "now" in signature(method).parameters}
    assert timed - {"admit", "step"} == set(INPUTS)  # the one changes nothing, the other is the output


def test_step_is_named_by_calls_and_row_indexes() -> None:
    call, other = make_call(7, 2), make_call(8)
    for index, row in enumerate(call.rows):
        row.call, row.order = call, (0, 0, index)
    unit = Unit(3, 0, 1, 0, [call.rows[1], call.rows[0]], 4, "idle", 5)
    start = [[3, 0, 1, 0, [[7, 1], [7, 0]], 4, 1, "idle"]]
    told = {"start": start, "done": [8], "drop": [], "wake_at": 99, "recall": [], "end_at_next_row": []}
    assert step_entry(Step([unit], [other], [], 99), 5) == {"t": 5, "step": told}


@pytest.mark.parametrize("header", [{"format": FORMAT + 1}, {}], ids=["other", "none"])
def test_other_formats_are_refused(header: Entry) -> None:
    with pytest.raises(ValueError, match=f"expected format {FORMAT}"):
        scheduler_of(header)


def test_unknown_input_is_refused() -> None:
    entries: list[Entry] = []
    RecordingScheduler(make_device(4), sink=entries.append)
    with pytest.raises(ValueError, match="unknown input 'sleep'"):
        feed(scheduler_of(entries[0]), {"in": "sleep", "t": 0})
