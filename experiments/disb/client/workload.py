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
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Kind = Literal["periodic", "poisson", "continuous", "trace", "dependent"]
Klass = Literal["realtime", "best_effort"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TIMED: tuple[Kind, ...] = ("periodic", "poisson", "trace")  # with instants, whatever the answers
CLASSES: tuple[Klass, ...] = get_args(Klass)

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


class _LoadFile(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Kind
    frequency: float = Field(0.0, ge=0, allow_inf_nan=False)
    priority: int = 0
    trace: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    prev_task_ids: list[str] = Field([])

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        if self.type in ("periodic", "poisson") and not self.frequency:
            raise ValueError("expected a frequency above 0")
        if self.type == "trace" and self.trace is None:
            raise ValueError("expected a trace: milliseconds from the start")
        if self.type == "dependent" and not self.prev_task_ids:
            raise ValueError("expected prev_task_ids: ids of tasks")
        return self

    def load(self) -> Load:
        if self.type in ("periodic", "poisson"):
            return Load(self.type, self.frequency, self.priority)
        if self.type == "trace":
            return Load(self.type, trace=tuple(sorted(round(instant * _MS) for instant in self.trace or ())))
        if self.type == "dependent":
            return Load(self.type, after=tuple(dict.fromkeys(self.prev_task_ids)))
        return Load(self.type)


class _ClientFile(BaseModel):
    model_config = ConfigDict(strict=True)

    model_name: str | None = Field(default=None, min_length=1)
    batch_size: int = Field(default=1, ge=1, lt=1 << 31)
    klass: Klass | None = Field(default=None, alias="class")


class _TaskFile(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str = Field(min_length=1)
    load: _LoadFile
    client: _ClientFile = _ClientFile()

    def task(self) -> Task:
        client = self.client
        klass: Klass = client.klass or ("best_effort" if self.id.endswith("_be") else "realtime")
        return Task(self.id, self.load.load(), client.model_name or self.id, client.batch_size, klass)


class _File(BaseModel):
    model_config = ConfigDict(strict=True)

    time: float = Field(gt=0, lt=_LONGEST_S)
    tasks: list[_TaskFile] = Field(min_length=1)


def parse(found: Any, place: str, name: str = "workload") -> Workload:
    """A workload from decoded JSON; `place` is named in errors. Raises ValueError, one line."""
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004
            f"{place}: expected an object, got {json.dumps(found, default=str)[:80]}"
        )
    try:
        file = _File.model_validate(found)
    except ValidationError as exc:
        first = exc.errors()[0]
        key, why = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{place}: {key}: {why}, got {json.dumps(first['input'], default=str)[:80]}") from None
    tasks = tuple(one.task() for one in file.tasks)
    _check_ids(place, tasks)
    return Workload(name, file.time, tasks)


def _check_ids(place: str, tasks: Sequence[Task]) -> None:
    """Every id is of one task, what a task follows is there, and no task follows itself: it would never launch."""
    ids = {task.id for task in tasks}
    if len(ids) < len(tasks):
        twice = next(task.id for task in tasks if [other.id for other in tasks].count(task.id) > 1)
        raise ValueError(f"{place}: tasks: expected an id that no other task has, got {twice}")
    for number, task in enumerate(tasks):
        for other in task.load.after:
            if other not in ids:
                key = f"tasks.{number}.load.prev_task_ids"
                raise ValueError(f"{place}: {key}: expected ids among {_list(ids)}, got {other}")
    try:
        TopologicalSorter({task.id: task.load.after for task in tasks}).prepare()
    except CycleError as exc:
        circle = " > ".join(exc.args[1])
        raise ValueError(f"{place}: tasks: expected tasks that do not depend on themselves, got {circle}") from None


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
