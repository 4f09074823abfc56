"""What a step of the scheduler costs by how many rows wait: `python -m experiments.costs.waiting`.

No device and no server: units end at once, and each costs `finished` and the step behind it, which starts the next.
Prints thread CPU microseconds of both together, the median of many, for a model that runs whole, in stages, by its
cell (half of whose rows end with each step), and with both classes waiting.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import count
from statistics import median

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Profile, Program, Row, Stage, Unit, WorkerSpec

WAITING = (0, 100, 1_000, 10_000)
FULL = 8
_LENGTH = 20
_TIMES = Profile(tuple(1_000_000 + 100_000 * rows for rows in range(1, FULL + 1)), handover_ns=100_000)
KINDS: dict[str, tuple[Stage, ...]] = {
    "whole": (Stage(_TIMES),),
    "stages": (Stage(_TIMES),) * 4,
    "cells": (Stage(_TIMES, repeats=True),),
    "classes": (Stage(_TIMES),),
}


class Bench:
    """A scheduler before which always the same number of rows waits."""

    def __init__(self, kind: str, waiting: int) -> None:
        self._cell = KINDS[kind][0].repeats
        self._classes = kind == "classes"
        self._calls = count(1)
        self._now = 0
        self.scheduler = Scheduler(DeviceSpec((WorkerSpec(FULL),), goes_on=True))
        self.scheduler.add_program(Program(1, kind, KINDS[kind], max_batch=FULL, max_queue=1 << 30), 0)
        self._enter(FULL)
        self._unit: Unit = self.scheduler.step(0).start[0]
        self._enter(waiting)
        self.scheduler.step(0)

    def _enter(self, rows: int) -> None:
        for _ in range(rows):
            ident = next(self._calls)
            klass = Klass(ident % 2) if self._classes else Klass.REALTIME
            self._now += 1_000
            call = Call(ident, 1, [Row(length=_LENGTH)], klass, 0, self._now, None)
            self.scheduler.submit(call, self._now)

    def turn_ns(self) -> int:
        """Thread CPU time of a unit's end and the step behind it. As many rows come as have been answered."""
        unit = self._unit
        self._now += unit.predicted
        ended = tuple(range(len(unit.rows) // 2 or 1)) if self._cell else ()
        outcome = Outcome(unit.id, None, unit.predicted, ended, 1 if self._cell else unit.steps)
        begun = time.thread_time_ns()
        self.scheduler.finished(outcome, self._now)
        step = self.scheduler.step(self._now)
        took = time.thread_time_ns() - begun
        if not step.start:
            self._enter(FULL)
            step.start += self.scheduler.step(self._now).start
        else:
            self._enter(len(step.done))
        self._unit = step.start[0]
        return took


def step_us(kind: str, waiting: int, turns: int) -> float:
    bench = Bench(kind, waiting)
    return median(bench.turn_ns() for _ in range(turns)) / 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs.waiting", description=__doc__)
    parser.add_argument("--turns", type=int, default=2_000, help="units of each cell [2000]")
    turns = parser.parse_args(arguments).turns
    print("us per step      " + "".join(f"{waiting:>9,}" for waiting in WAITING) + "  rows wait")
    for kind in KINDS:
        print(f"{kind:<17}" + "".join(f"{step_us(kind, waiting, turns):9.1f}" for waiting in WAITING))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
