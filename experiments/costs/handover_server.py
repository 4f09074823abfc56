"""A server that writes down what each batch cost beyond computing, for `python -m experiments.costs.handover`.

`python -m experiments.costs.handover_server FILE KIND serve ...` serves as `starling serve ...` does. When it ends it
writes FILE: for each batch [end of its hand-over, start, back, rows], in nanoseconds of the monotonic clock. `start` is
from forming the batch until its worker computes, `back` from the end of computing until the event loop has heard of it.
KIND `at-once` answers without waiting for the worker to begin.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from app.cli import commands as cli
from app.engine import device_factory as factory
from app.engine.cpu.device import CpuDevice
from app.engine.device import Completion, Freed, Launched, Report
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Outcome

AS_IT_IS, AT_ONCE = KINDS = ("as-it-is", "at-once")


class Stamping(CpuDevice):
    """Notes when each unit has been computed. `waits`: as the device does, before the loop goes on to answer."""

    ended: dict[int, int]
    waits = True

    def start(self, report: Report, launched: Launched | None = None, freed: Freed | None = None) -> None:
        Stamping.ended = {}

        def heard(completion: Completion) -> None:
            self.ended[completion.outcome.unit_id] = time.monotonic_ns()
            report(completion)

        super().start(heard, launched, freed)

    def let_begin(self) -> None:
        if self.waits:
            super().let_begin()


def main(arguments: list[str]) -> None:
    file, kind, *flags = arguments
    batches: list[tuple[int, int, int, int]] = []
    finished = Scheduler.finished

    def noted(self: Scheduler, outcome: Outcome, now: int) -> None:
        unit = next(unit for unit in self.running if unit.id == outcome.unit_id)
        ended = Stamping.ended.pop(unit.id)
        batches.append((now, ended - outcome.compute_ns - unit.started, now - ended, len(unit.rows)))
        finished(self, outcome, now)

    Stamping.waits = kind != AT_ONCE
    factory.CpuDevice = Stamping  # type: ignore[misc]
    Scheduler.finished = noted  # type: ignore[method-assign]
    sys.argv = ["starling", *flags]
    try:
        cli.main()
    finally:
        Path(file).write_text(json.dumps(batches))


if __name__ == "__main__":
    main(sys.argv[1:])
