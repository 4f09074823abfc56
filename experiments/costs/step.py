"""What the scheduler costs for each batch, by policy: `python -m experiments.costs.step`.

No device and no server: batches take as long as their profile says, in virtual time. Prints thread CPU microseconds,
each the median of many: of one `submit`, of `finished`, and of the step behind it, which starts the next batch.
`adaptive` has its control tables. Rounds of the policies alternate, since a machine that does other work drifts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import count
from statistics import median

from app.scheduler.optimal.tables import solve
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Profile, Program, Row, Stage, WorkerSpec

POLICIES = ("no_wait", "adaptive")
ROWS = (1, 3, 10)  # of a batch
_LARGEST = 32
_HANDOVER_NS = 100_000
_PROFILE = Profile(
    tuple(300_000 + 20_000 * rows for rows in range(1, _LARGEST + 1)), (), (), _HANDOVER_NS, (0.01,) * _LARGEST
)
_TABLES = solve(_PROFILE, loads=(0.05, 0.3, 0.6, 0.9))
_S = 1_000_000_000
_GAP_NS = 20_000  # between two calls


def costs_us(policy: str, rows: int, turns: int) -> tuple[float, float, float]:
    """Of a submit, of `finished` and of a step."""
    scheduler = Scheduler(DeviceSpec((WorkerSpec(_LARGEST),), multi_step=True))
    scheduler.add_program(Program(1, policy, (Stage(_PROFILE),), policy, _LARGEST, 1 << 30), 0)
    scheduler.control(1, _TABLES, 0)
    scheduler.tick(_S)
    calls, now = count(), _S
    submitted, finished, stepped = [], [], []
    unit = None
    for _ in range(turns):
        fresh = [Call(next(calls), 1, [Row()], Klass.REALTIME, 0, now + _GAP_NS * index, None) for index in range(rows)]
        now += _GAP_NS * rows
        begun = time.thread_time_ns()
        for call in fresh:
            scheduler.submit(call, call.arrived)
        submitted.append((time.thread_time_ns() - begun) / rows)
        if unit is not None:
            took_ns = _PROFILE.batch_ns[unit.size - 1]
            now = max(now, unit.started + took_ns + _HANDOVER_NS)
            outcome = Outcome(unit.id, None, took_ns)
            begun = time.thread_time_ns()
            scheduler.finished(outcome, now)
            finished.append(time.thread_time_ns() - begun)
        begun = time.thread_time_ns()
        step = scheduler.step(now)
        stepped.append(time.thread_time_ns() - begun)
        unit = step.start[0]
    return median(submitted) / 1e3, median(finished) / 1e3, median(stepped) / 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs.step", description=__doc__)
    parser.add_argument("--turns", type=int, default=2_000, help="batches of each figure [2000]")
    parser.add_argument("--rounds", type=int, default=5, help="the least of so many is taken [5]")
    options = parser.parse_args(arguments)
    print("us                 submit  finished      step")
    for rows in ROWS:
        rounds = [[costs_us(policy, rows, options.turns) for policy in POLICIES] for _ in range(options.rounds)]
        for policy, found in zip(POLICIES, zip(*rounds, strict=True), strict=True):
            print(f"{policy:<10}{rows:4} rows" + "".join(f"{min(values):10.2f}" for values in zip(*found, strict=True)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
