"""Fifty small models in one server, and in one scheduler: `python -m experiments.many fifty`.

Servers with 1, 10 and 50 models of three linear layers are started from a folder: how long until they are ready, the
CPU time of that, and the memory of the process when each model has answered once. Then a scheduler in virtual time:
function calls and CPU time of what one batch costs it, where other models have nothing waiting and where all have.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Profile, Program, Row, Stage, WorkerSpec
from experiments.common.folders import vector, write_model
from loadtest.common import servers
from loadtest.common.command import resident_mib
from loadtest.common.experiment import Data, Say

NUMBERS = (1, 10, 50)  # of models
TURNS = 1_000  # batches of each figure
ROUNDS = 1  # starts of each server; the least time is kept
SAME = 1.02  # function calls of a batch beside idle models over those of one alone, at most
_LARGEST = 32
_PROFILE = Profile(tuple(300_000 + 20_000 * rows for rows in range(1, _LARGEST + 1)))
_BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": [' + b"0.5, " * 63 + b"0.5]}]}"
_MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
"""


def write_models(folder: Path, number: int) -> list[str]:
    """Folders of so many equal models; their names."""
    names = [f"small-{index}" for index in range(number)]
    for name in names:
        write_model(folder / name, "model.py:build", [vector("x", 64)], [vector("y", 8)], batching={"max_batch": 32})
        (folder / name / "model.py").write_text(_MODEL)
    return names


def served(number: int) -> dict[str, float]:
    """One server with so many models. Raises ServerError if it does not start or answer."""
    with tempfile.TemporaryDirectory() as folder:
        names = write_models(Path(folder), number)
        with servers.starling(["--models", folder, "--threads", "1"]) as server:
            ready_s, cpu_s = server.wait_ready(), server.cpu_seconds()
            for name in names:
                status, _, body = server.call("POST", f"/v2/models/{name}/infer", _BODY)
                if status != 200:
                    raise servers.ServerError(f"{name}: status {status}, {body[:200]!r}")
            return {"ready_s": ready_s, "cpu_s": cpu_s or 0.0, "resident_mib": resident_mib(server.process.pid)}


def batches(programs: int, waiting: int) -> Callable[[], None]:
    """A function that makes a scheduler with so many programs end a batch and start the next.

    `waiting`: how many of the programs have rows that wait whenever one ends.
    """
    scheduler = Scheduler(DeviceSpec((WorkerSpec(_LARGEST),), multi_step=True))
    for program in range(programs):
        scheduler.add_program(Program(program, str(program), (Stage(_PROFILE),), "no_wait", _LARGEST, 1 << 30), 0)
    calls = count()
    now = 0

    def submit(program: int) -> None:
        scheduler.submit(Call(next(calls), program, [Row()], Klass.REALTIME, 0, now, None), now)

    for program in range(waiting):
        submit(program)
    submit(0)
    (unit,) = scheduler.step(now).start

    def batch() -> None:
        nonlocal unit, now
        submit(unit.program)
        now += unit.predicted
        scheduler.finished(Outcome(unit.id, None, unit.predicted), now)
        (unit,) = scheduler.step(now).start

    return batch


def cost(programs: int, waiting: int, turns: int) -> dict[str, Any]:
    """Of a batch, its call's submit included: function calls, Python's and C's, and CPU time. Medians."""
    batch = batches(programs, waiting)
    called = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    calls, times = [], []
    for _ in range(turns):
        called = 0
        sys.setprofile(note)
        batch()
        sys.setprofile(None)
        calls.append(called)
        begun = time.thread_time_ns()
        batch()
        times.append((time.thread_time_ns() - begun) / 1e3)
    return {"programs": programs, "waiting": waiting, "calls": median(calls), "us": median(times)}


def measure(say: Say) -> Data:
    """Fifty models in one server, and in one scheduler."""
    costs = [cost(*given, TURNS) for given in ((1, 1), (50, 1), (1, 1), (50, 1), (50, 2), (50, 50))]
    rounds = [{number: served(number) for number in NUMBERS} for _ in range(ROUNDS)]
    least = [
        {"models": number, **{key: min(found[number][key] for found in rounds) for key in rounds[0][number]}}
        for number in NUMBERS
    ]
    return {"rounds": ROUNDS, "turns": TURNS, "servers": least, "costs": costs}


def missed(data: Data) -> list[str]:
    calls = {(cost["programs"], cost["waiting"]): cost["calls"] for cost in data["costs"]}
    one, fifty = calls[1, 1], calls[50, 1]
    return [f"a batch makes {fifty:g} calls beside 49 idle models, {one:g} alone"] if fifty > SAME * one else []
