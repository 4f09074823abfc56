"""A Scheduler that records every input and every Step as plain dicts, which can be replayed.

The first entry is the configuration; each input is `{"in": name, "t": now, ...}`; each answer `{"step": {...}, "t"}`.
Entries are JSON-able and complete: fed to a fresh Scheduler they give the same Steps. Writing them down is the
driver's affair; an entry `{"dropped": n}` says that the record has a hole, after which replay has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from app.scheduler.estimates.pairs import PairSlowdowns
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import (
    Call,
    ClassSpec,
    DeviceSpec,
    Fault,
    Klass,
    Outcome,
    Profile,
    Program,
    Row,
    Stage,
    Step,
    Unit,
    WorkerSpec,
)

#: 1 knew no control tables, 2 no units of several stages or steps, 3 no classes of a device, 4 no units that go on when
#: rows of them end, 5 not how many steps a unit has made, 6 pushed steps of cells behind one another, 7 took
#: units back.
FORMAT = 8
Entry = dict[str, Any]


def step_entry(step: Step, now: int) -> Entry:
    """A Step as data: units with their rows as [call id, row index]."""
    entry: Entry = {
        "t": now,
        "step": {
            "start": [
                [u.id, u.worker, u.program, u.stage, [[r.call.id, r.index] for r in u.rows], u.size, u.steps, u.reason]
                for u in step.start
            ],
            "done": [call.id for call in step.done],
            "drop": [[drop.call.id, drop.reason.value, drop.row] for drop in step.drop],
            "wake_at": step.wake_at,
            "recall": [unit.id for unit in step.recall],
            "end_at_next_row": [unit.id for unit in step.end_at_next_row],
        },
    }
    if step.held:  # where nothing was held, it makes no difference whether it was asked for
        entry["held"] = True
    return entry


class RecordingScheduler(Scheduler):
    """A Scheduler that hands every input and every Step to `sink` before it acts."""

    def __init__(self, device: DeviceSpec, *, sink: Callable[[Entry], None]) -> None:
        super().__init__(device)
        self._sink = sink
        sink({"format": FORMAT, "device": asdict(device)})

    def add_program(self, program: Program, now: int) -> None:
        self._sink({"in": "add_program", "t": now, "program": asdict(program)})
        super().add_program(program, now)

    def remove_program(self, program: int, now: int) -> None:
        self._sink({"in": "remove_program", "t": now, "program": program})
        super().remove_program(program, now)

    def submit(self, call: Call, now: int) -> None:
        rows = [[row.slot, row.length] for row in call.rows]
        self._sink(
            {"in": "submit", "t": now, "id": call.id, "program": call.program, "rows": rows, "klass": int(call.klass),
             "priority": call.priority, "arrived": call.arrived, "deadline": call.deadline}
        )  # fmt: skip
        super().submit(call, now)

    def refused(self, program: int, n: int, now: int, klass: Klass = Klass.REALTIME) -> None:
        self._sink({"in": "refused", "t": now, "program": program, "rows": n, "klass": int(klass)})
        super().refused(program, n, now, klass)

    def cancel(self, call_id: int, now: int) -> None:
        self._sink({"in": "cancel", "t": now, "id": call_id})
        super().cancel(call_id, now)

    def extend(self, call_id: int, deadline: int | None, now: int) -> None:
        self._sink({"in": "extend", "t": now, "id": call_id, "deadline": deadline})
        super().extend(call_id, deadline, now)

    def progressed(self, unit_id: int, steps: int, now: int) -> None:
        self._sink({"in": "progressed", "t": now, "unit": unit_id, "steps": steps})
        super().progressed(unit_id, steps, now)

    def finished(self, outcome: Outcome, now: int) -> Unit | None:
        self._sink({"in": "finished", "t": now, "outcome": asdict(outcome)})
        return super().finished(outcome, now)

    def pair(self, pairs: PairSlowdowns, now: int) -> None:
        self._sink({"in": "pair", "t": now, "pairs": [[*pair, slower] for pair, slower in sorted(pairs.items())]})
        super().pair(pairs, now)

    def tick(self, now: int) -> None:
        self._sink({"in": "tick", "t": now})
        super().tick(now)

    def reprofile(self, program: int, profile: Profile, now: int, stage: int = 0) -> None:
        entry = {"in": "reprofile", "t": now, "program": program, "profile": asdict(profile)}
        self._sink({**entry, "stage": stage} if stage else entry)
        super().reprofile(program, profile, now, stage)

    def bound(self, program: int, max_alive: int, now: int) -> None:
        self._sink({"in": "bound", "t": now, "program": program, "max_alive": max_alive})
        super().bound(program, max_alive, now)

    def control(self, program: int, tables: ControlTables | None, now: int) -> None:
        data = None if tables is None else tables.to_dict()
        self._sink({"in": "control", "t": now, "program": program, "tables": data})
        super().control(program, tables, now)

    def step(self, now: int, *, hold: bool = False) -> Step:
        step = super().step(now, hold=hold)
        self._sink(step_entry(step, now))
        return step


def scheduler_of(header: Entry) -> Scheduler:
    """A fresh Scheduler as the first entry of a record describes it. Raises ValueError for another format."""
    if header.get("format") != FORMAT:
        raise ValueError(f"record: expected format {FORMAT} in the first line, got {header.get('format')!r}")
    device = dict(header["device"])
    workers = tuple(WorkerSpec(**worker) for worker in device.pop("workers"))
    classes = ClassSpec(**device.pop("classes"))
    return Scheduler(DeviceSpec(workers=workers, classes=classes, **device))


def feed(scheduler: Scheduler, entry: Entry) -> None:
    """Give one recorded input to a scheduler."""
    name, now = entry["in"], entry["t"]
    if name == "submit":
        rows = [Row(slot, length) for slot, length in entry["rows"]]
        klass = Klass(entry["klass"])
        call = Call(entry["id"], entry["program"], rows, klass, entry["priority"], entry["arrived"], entry["deadline"])
        scheduler.submit(call, now)
    elif name == "finished":
        outcome = dict(entry["outcome"])
        fault = outcome.pop("error")
        ended, times = tuple(outcome.pop("ended")), tuple(outcome.pop("times"))
        error = Fault(fault) if fault else None
        scheduler.finished(Outcome(error=error, ended=ended, times=times, **outcome), now)
    elif name == "add_program":
        scheduler.add_program(_program(entry["program"]), now)
    elif name == "remove_program":
        scheduler.remove_program(entry["program"], now)
    elif name == "refused":
        scheduler.refused(entry["program"], entry["rows"], now, Klass(entry.get("klass", 0)))
    elif name == "cancel":
        scheduler.cancel(entry["id"], now)
    elif name == "extend":
        scheduler.extend(entry["id"], entry["deadline"], now)
    elif name == "progressed":
        scheduler.progressed(entry["unit"], entry["steps"], now)
    elif name == "pair":
        scheduler.pair({(one, other): slower for one, other, slower in entry["pairs"]}, now)
    elif name == "tick":
        scheduler.tick(now)
    elif name == "reprofile":
        scheduler.reprofile(entry["program"], _profile(entry["profile"]), now, entry.get("stage", 0))
    elif name == "bound":
        scheduler.bound(entry["program"], entry["max_alive"], now)
    elif name == "control":
        tables = entry["tables"]
        scheduler.control(entry["program"], None if tables is None else ControlTables.from_dict(tables), now)
    else:
        raise ValueError(f"record: unknown input {name!r}")


def _program(data: Entry) -> Program:
    fields = dict(data)
    stages = tuple(Stage(_profile(stage.pop("profile")), **stage) for stage in map(dict, fields.pop("stages")))
    return Program(stages=stages, length_buckets=tuple(fields.pop("length_buckets")), **fields)


def _profile(data: Entry) -> Profile:
    return Profile(
        batch_ns=tuple(data["batch_ns"]),
        concurrency_ns=tuple(tuple(times) for times in data.get("concurrency_ns", ())),
        by_length=tuple((length, tuple(times)) for length, times in data.get("by_length", ())),
        handover_ns=data.get("handover_ns"),
        errors=tuple(data.get("errors", ())),
    )
