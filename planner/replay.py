"""Replays a record: its inputs, fed to a fresh Scheduler, must give the recorded Steps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from app.scheduler.record import Entry, feed, scheduler_of, step_entry


@dataclass(frozen=True, slots=True)
class Replayed:
    """`equal`: Steps that agreed before the first difference. `hole`: entries lost from the record; replay ends
    there.
    """

    equal: int
    line: int | None = None  # of the first differing Step, counted from 1
    expected: Entry | None = None
    got: Entry | None = None
    hole: int = 0

    @property
    def same(self) -> bool:
        return self.line is None


def replay(lines: Iterable[str]) -> Replayed:
    """Run a record (JSON lines) again, up to the first difference or to a hole in the record.

    Raises ValueError if the lines are not a record.
    """
    entries = ((number, json.loads(line)) for number, line in enumerate(lines, 1) if line.strip())
    try:
        _, header = next(entries)
    except StopIteration:
        raise ValueError("record: expected a first line with the configuration, got an empty file") from None
    if not (isinstance(header, dict) and "format" in header):
        raise ValueError(f"record: expected a first line with the configuration, got {header!r}")
    scheduler = scheduler_of(header)
    equal = 0
    for number, entry in entries:
        if "dropped" in entry:
            return Replayed(equal, hole=entry["dropped"])
        if "step" not in entry:
            feed(scheduler, entry)
            continue
        # to JSON and back, as in the record, so that tuples become lists
        step = scheduler.step(entry["t"], hold=entry.get("held", False))
        got = json.loads(json.dumps(step_entry(step, entry["t"])))
        if got != entry:
            return Replayed(equal, number, entry, got)
        equal += 1
    return Replayed(equal)
