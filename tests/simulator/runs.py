"""Small runs of the simulator whose latencies can be computed by hand, and the record of a short session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.scheduler.estimates.profile import Profile
from app.scheduler.record import Entry, RecordingScheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Program, Row, WorkerSpec
from planner.fleet import Setup
from planner.node import Node
from planner.simulator import Simulator
from planner.tally import Tally

MS = 1_000_000


class Kept(list[int]):
    """Latencies that are still there when they have been folded away."""

    def clear(self) -> None:
        pass


def simulated(
    setup: Setup, node: Node | None = None, times_ns: Sequence[int] = (), *rows: list[int], tally: Tally | None = None,
    **options: Any,
) -> Tally:  # fmt: skip
    """All requests of a setup have passed through one replica, or those at these times. `rows`: lengths, steps."""
    tally = tally or Tally()
    simulator = Simulator([node or setup.node(0)], tally, deadline_ns=setup.deadline_ns, **options)
    for chunk in [times_ns] if len(times_ns) else setup.instants():
        simulator.feed(list(map(int, chunk)), *rows)
    simulator.drain()
    return tally


def latencies(
    profile: Profile, times_ms: Sequence[float], *rows: list[int], **options: Any
) -> tuple[list[float], float, float]:
    """Milliseconds of each request, in the order of its answer; busy and last millisecond. `rows`: lengths, steps."""
    setup = Setup(profile, 1, **{"policy": "no_wait", **options})
    tally = simulated(setup, None, [round(time * MS) for time in times_ms], *rows, tally=Tally(latencies=Kept()))
    return [latency / MS for latency in tally.latencies], tally.busy_ns / MS, tally.end_ns / MS


def recorded() -> list[Entry]:
    """Configuration, program, then three calls, each submitted, started and finished: lines 1, 2 and 3 to 14."""
    entries: list[Entry] = []
    scheduler = RecordingScheduler(DeviceSpec((WorkerSpec(4),)), sink=entries.append)
    scheduler.add_program(Program(1, "echo"), 0)
    for ident in range(3):
        now = 10 * ident
        scheduler.submit(Call(ident, 1, [Row(ident)], Klass.REALTIME, 0, now, now + 100), now)
        (unit,) = scheduler.step(now).start
        scheduler.finished(Outcome(unit.id, compute_ns=5), now + 5)
        scheduler.step(now + 5)
    return entries
