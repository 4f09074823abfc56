"""Reads workloads in DISB's format: tasks, each a model under a load of its own.

    {"time": 60, "tasks": [{"id": "vgg19_rt",
                            "load": {"type": "periodic", "frequency": 100, "priority": 0},
                            "client": {"model_name": "vgg19", "batch_size": 1, "class": "realtime"}}]}

Load types: `periodic` and `poisson` (`frequency` per second), `trace` (`trace`: ms from the start), `continuous` (the
next request follows the answer) and `dependent` (`prev_task_ids`: it follows the answers of these). `client` is free
form; read are `model_name` (by default the task's id), `batch_size` (rows, by default 1) and our own addition `class`.
Without it an id that ends in `_be` is best effort, as DISB names such tasks, and all others are real time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

Kind = Literal["periodic", "poisson", "continuous", "trace", "dependent"]
Klass = Literal["realtime", "best_effort"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TIMED: tuple[Kind, ...] = ("periodic", "poisson", "trace")  # with instants, whatever the answers
CLASSES: tuple[Klass, ...] = get_args(Klass)

_NS = 1_000_000_000
_MS = 1_000_000
_LONGEST_S = 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """When a task launches. `frequency` per second; `trace`: ns from the start, in order; `after`: ids of tasks.

    `priority` is DISB's: periodic tasks of priority 0 and equal frequency are shifted apart.
    """

    kind: Kind
    frequency: float = 0.0
    priority: int = 0
    trace: tuple[int, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A client with at most one request at a time."""

    id: str
    load: Load
    model: str
    rows: int = 1
    klass: Klass = "realtime"


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks that run beside one another for `time_s` seconds. `name`: the file's, without its ending."""

    name: str
    time_s: float
    tasks: tuple[Task, ...]

    def scaled(self, factor: float) -> Workload:
        """All rates times `factor`, for the same time. Raises ValueError.

        A trace's instants are divided by it; those that then lie behind the end are left out. Closed loops and tasks
        that follow others go as fast as answers come, and stay as they are.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"scale: expected a number above 0, got {factor:g}")
        return replace(self, tasks=tuple(replace(task, load=_scaled(task.load, factor)) for task in self.tasks))

    def mapped(self, models: Mapping[str, str]) -> Workload:
        """With other models: by a task's id, or by the name of its model. Raises ValueError for a name of neither."""
        known = {name for task in self.tasks for name in (task.id, task.model)}
        for name in models:
            if name not in known:
                raise ValueError(f"map: expected a task or a model of {self.name}, one of {_list(known)}, got {name!r}")
        return replace(
            self,
            tasks=tuple(
                replace(task, model=models.get(task.id, models.get(task.model, task.model))) for task in self.tasks
            ),
        )

    def only(self, klass: Klass) -> Workload:
        """The tasks of one class. What follows a task of the other class would never launch, and is left out too."""
        kept: list[Task] = [task for task in self.tasks if task.klass == klass]
        while True:
            ids = {task.id for task in kept}
            fit = [task for task in kept if ids.issuperset(task.load.after)]
            if len(fit) == len(kept):
                return replace(self, tasks=tuple(kept))
            kept = fit


def _scaled(load: Load, factor: float) -> Load:
    trace = tuple(round(instant / factor) for instant in load.trace)
    return replace(load, frequency=load.frequency * factor, trace=trace)


def read(path: Path) -> Workload:
    """Raises ValueError, `FILE: key: expected ..., got ...`, and OSError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ValueError(f"{path}: expected JSON, got {exc}") from None
    return parse(found, str(path), path.stem)


def parse(found: Any, place: str, name: str = "workload") -> Workload:
    """A workload from decoded JSON; `place` is named in errors. Raises ValueError."""
    top = _Keys(place, "", found)
    time_s = top.number("time", least=0)
    if not 0 < time_s < _LONGEST_S:
        top.wrong("time", "seconds above 0", time_s)
    given = top.items("tasks")
    if not given:
        top.wrong("tasks", "at least one task", given)
    tasks: list[Task] = []
    for number, one in enumerate(given):
        keys = _Keys(place, f"tasks[{number}]", one)
        task = _task(keys)
        if any(task.id == other.id for other in tasks):
            keys.wrong("id", "an id that no other task has", task.id)
        tasks.append(task)
    _check_order(top, tasks)
    return Workload(name, time_s, tuple(tasks))


def _task(keys: _Keys) -> Task:
    ident = keys.text("id")
    client = keys.inner("client", {})
    rows = client.number("batch_size", 1)
    if rows != int(rows) or not 1 <= rows < 1 << 31:
        client.wrong("batch_size", "a whole number of at least 1", rows)
    klass = client.text("class", "best_effort" if ident.endswith("_be") else "realtime")
    known = next((known for known in CLASSES if known == klass), None)
    if known is None:
        client.wrong("class", " or ".join(CLASSES), klass)
    return Task(ident, _load(keys.inner("load")), client.text("model_name", ident), int(rows), known)


def _load(keys: _Keys) -> Load:
    text = keys.text("type")
    kind = next((kind for kind in KINDS if kind == text), None)
    if kind is None:
        keys.wrong("type", f"one of {', '.join(KINDS)}", text)
    if kind in ("periodic", "poisson"):
        frequency = keys.number("frequency", least=0)
        if frequency == 0:
            keys.wrong("frequency", "a number above 0", frequency)
        priority = keys.number("priority", 0)
        if priority != int(priority):
            keys.wrong("priority", "a whole number", priority)
        return Load(kind, frequency, int(priority))
    if kind == "trace":
        instants = keys.items("trace")
        for number, instant in enumerate(instants):
            if not _is_number(instant) or instant < 0:
                keys.wrong(f"trace[{number}]", "milliseconds of at least 0", instant)
        return Load(kind, trace=tuple(sorted(round(instant * _MS) for instant in instants)))
    if kind == "dependent":
        ids = keys.items("prev_task_ids")
        if not ids or not all(isinstance(one, str) for one in ids):
            keys.wrong("prev_task_ids", "ids of tasks", ids)
        return Load(kind, after=tuple(dict.fromkeys(ids)))
    return Load(kind)


def _check_order(top: _Keys, tasks: Sequence[Task]) -> None:
    """What a task depends on is there, and is not the task itself in a circle, which would never launch."""
    ids = {task.id for task in tasks}
    for number, task in enumerate(tasks):
        for other in task.load.after:
            if other not in ids:
                top.wrong(f"tasks[{number}].load.prev_task_ids", f"ids among {_list(ids)}", other)
    try:
        TopologicalSorter({task.id: task.load.after for task in tasks}).prepare()
    except CycleError as exc:
        top.wrong("tasks", "tasks that do not depend on themselves", " > ".join(exc.args[1]))


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class _Keys:
    """One object of the file, and where it stands there. All methods raise ValueError for what does not fit."""

    def __init__(self, place: str, path: str, found: Any) -> None:
        self._place = place
        self._path = path
        if not isinstance(found, dict):
            self.wrong("", "an object", found)
        self._found: dict[str, Any] = found

    def wrong(self, key: str, expected: str, got: Any) -> NoReturn:
        path = ".".join(part for part in (self._path, key) if part)
        shown = got if isinstance(got, str) else json.dumps(got, default=str)
        raise ValueError(f"{self._place}: {path + ': ' if path else ''}expected {expected}, got {shown[:80]}")

    def _get(self, key: str, expected: str, default: Any) -> Any:
        value = self._found.get(key, default)
        if value is None:
            self.wrong(key, expected, "nothing")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, "text", default)
        if not isinstance(value, str) or not value:
            self.wrong(key, "text", value)
        return value

    def number(self, key: str, default: float | None = None, least: float = -math.inf) -> float:
        value = self._get(key, "a number", default)
        if not _is_number(value) or value < least:
            self.wrong(key, "a number" if least == -math.inf else f"a number of at least {least:g}", value)
        return float(value)

    def items(self, key: str) -> list[Any]:
        value = self._get(key, "a list", None)
        if not isinstance(value, list):
            self.wrong(key, "a list", value)
        return value

    def inner(self, key: str, default: Any = None) -> _Keys:
        path = ".".join(part for part in (self._path, key) if part)
        return _Keys(self._place, path, self._get(key, "an object", default))
