"""A Scheduler that records every input and every Step as plain dicts. `planner.replay` replays them.

The first entry is the configuration. Each input is `{"in": method, "t": now, argument: value, ...}`, each output
`{"step": {...}, "t"}`. Entries can be written as JSON and are complete: fed to a fresh Scheduler, the inputs give the
same Steps. The driver writes the entries to a file. `{"dropped": n}` means that it lost n of them; replay stops there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from inspect import signature
from typing import Any

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Step

#: It changes with what is recorded: a record is replayed by the version that wrote it.
FORMAT = 13
Entry = dict[str, Any]


def step_entry(step: Step, now: int) -> Entry:
    """A Step as data: units with their rows as [call id, row index]."""
    entry: Entry = {
        "t": now,
        "step": {
            "start": [
                [
                    u.id,
                    u.worker,
                    u.program,
                    u.stage,
                    [[r.call.id, r.index] for r in u.rows],
                    u.size,
                    u.course.steps,
                    u.reason,
                ]
                for u in step.start
            ],
            "done": [call.id for call in step.done],
            "drop": [[drop.call.id, drop.reason.value, drop.row] for drop in step.drop],
            "wake_at": step.wake_at,
            "recall": [unit.id for unit in step.recall],
            "end_at_next_row": [unit.id for unit in step.end_at_next_row],
        },
    }
    if step.held:  # if no unit was held, `hold` made no difference
        entry["held"] = True
    return entry


class RecordingScheduler(Scheduler):
    """A Scheduler that passes to `sink` every input (see `INPUTS`), before acting on it, and every Step."""

    def __init__(self, device: DeviceSpec, *, sink: Callable[[Entry], None]) -> None:
        super().__init__(device)
        self.sink = sink
        sink({"format": FORMAT, "device": asdict(device)})

    def step(self, now: int, *, hold: bool = False) -> Step:
        step = super().step(now, hold=hold)
        self.sink(step_entry(step, now))
        return step


def _data(value: Any) -> Any:
    if isinstance(value, int | None):
        return value
    if isinstance(value, Call):  # its rows refer to it
        names = ("id", "program", "klass", "priority", "arrived", "deadline")
        rows = [[row.slot, row.length] for row in value.rows]
        return {**{name: getattr(value, name) for name in names}, "rows": rows}
    if isinstance(value, Mapping):
        return [[*pair, slower] for pair, slower in sorted(value.items())]
    return asdict(value)


#: The inputs of a Scheduler.
INPUTS = (
    "add_program", "remove_program", "refused", "submit", "cancel", "extend", "progressed", "finished", "pair", "tick",
    "reprofile", "bound", "control",
)  # fmt: skip


def _recorded(name: str) -> Callable[..., Any]:
    """The Scheduler's method of this name, which first records its arguments."""
    act = getattr(Scheduler, name)
    _, *names = signature(act).parameters

    def record(self: RecordingScheduler, *given: Any, **named: Any) -> Any:
        arguments = {**dict(zip(names, given, strict=False)), **named}
        now = arguments.pop("now")
        self.sink({"in": name, "t": now, **{key: _data(value) for key, value in arguments.items()}})
        return act(self, *given, **named)

    return record


# Written out, these thirteen methods would differ only in their names, and each would repeat a signature of Scheduler.
for _name in INPUTS:
    setattr(RecordingScheduler, _name, _recorded(_name))
