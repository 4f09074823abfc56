"""Replays a record: its inputs, fed to a fresh Scheduler, must give the recorded Steps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from app.scheduler.estimates.pairs import PairSlowdowns
from app.scheduler.record import FORMAT, INPUTS, Entry, step_entry
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Row

# Cached, because both take long.
_adapter, _hints_of = cache(TypeAdapter), cache(get_type_hints)


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
    entries = ((number, _entry(number, line)) for number, line in enumerate(lines, 1) if line.strip())
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


def _entry(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise ValueError(f"record: line {number}: expected JSON, got {line[:40]!r}") from None


def scheduler_of(header: Entry) -> Scheduler:
    """A fresh Scheduler with the configuration in the first entry of a record. Raises ValueError for another format."""
    if header.get("format") != FORMAT:
        raise ValueError(f"record: expected format {FORMAT} in the first line, got {header.get('format')!r}")
    return Scheduler(_adapter(DeviceSpec).validate_python(header["device"]))


def feed(scheduler: Scheduler, entry: Entry) -> None:
    """Give one recorded input to a scheduler."""
    name = entry["in"]
    if name not in INPUTS:
        raise ValueError(f"record: unknown input {name!r}")
    kinds = _hints_of(getattr(Scheduler, name))
    arguments = {key: _value(kinds[key], value) for key, value in entry.items() if key not in ("in", "t")}
    getattr(scheduler, name)(**arguments, now=entry["t"])


def _value(kind: Any, data: Any) -> Any:
    if kind is Call:
        fields = dict(data)
        rows = [Row(slot, length) for slot, length in fields.pop("rows")]
        return Call(rows=rows, klass=Klass(fields.pop("klass")), **fields)
    if kind == PairSlowdowns:
        return {(one, other): slower for one, other, slower in data}
    return _adapter(kind).validate_python(data)
