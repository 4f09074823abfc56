"""Simulates overload with impatient clients: `python -m experiments.overload.overload`.

A model of 50 ms a batch of up to 8 rows, Poisson arrivals at 1 to 20 times what it can serve, clients that wait and
clients that leave after 2 s. Compares serving in order of arrival with `max_queue` alone, newest first once a caller
has left the queue, and the server's queue, which is as long as callers wait. Prints goodput as a part of the peak, the
median latency of answers, and the part of requests that were refused.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from statistics import median

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Profile, Program, Row, Stage, WorkerSpec
from loadtest.common.page import lines_table

S = 1_000_000_000
BATCH, BATCH_NS = 8, 50_000_000
LOADS = (1.0, 1.2, 2.0, 5.0, 10.0, 20.0)
WAYS = ("in order", "newest first", "as long as callers wait")
_NEVER = 1 << 62


class Overload:
    """One run. `good`: latencies in seconds of calls whose callers were still there."""

    def __init__(self, load: float, way: str, patience_s: float, seed: int = 0) -> None:
        self.rate = load * BATCH / BATCH_NS  # calls per ns
        self.good: list[float] = []
        self.refused = self.came = 0
        self._way, self._patience_ns = way, round(patience_s * S)
        self._random = random.Random(seed)
        self._scheduler = Scheduler(DeviceSpec((WorkerSpec(BATCH),)))
        stages = (Stage(Profile((BATCH_NS,) * BATCH)),)
        self._scheduler.add_program(Program(1, "m", stages, "no_wait", BATCH), 0)
        self._state = self._scheduler._states[1]
        if way != WAYS[2]:
            self._state.patience[0]._least = _NEVER  # nothing is learnt
        self._left = False  # a caller has left, and more than a batch has waited since
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = count()

    def run(self, seconds: int) -> Overload:
        self._at(self._next(0), self._arrive)
        for second in range(1, seconds + 1):
            self._at(second * S, self._scheduler.tick)
        while self._events[0][0] <= seconds * S:
            now, _, act = heappop(self._events)
            act(now)
            if self._events[0][0] != now:
                self._step(now)
        return self

    def _step(self, now: int) -> None:
        step = self._scheduler.step(now)
        self.good += [(now - call.arrived) / S for call in step.done]
        for unit in step.start:
            self._at(now + unit.predicted, lambda at, ran=unit: self._end(Outcome(ran.id, None, ran.predicted), at))

    def _end(self, outcome: Outcome, now: int) -> None:
        self._scheduler.finished(outcome, now)

    def _arrive(self, now: int) -> None:
        self._at(self._next(now), self._arrive)
        self.came += 1
        if self._scheduler.admit(1, 1, Klass.REALTIME, None, now) is not None:
            self.refused += 1
            self._scheduler.refused(1, 1, now)
            return
        call = Call(self.came, 1, [Row()], Klass.REALTIME, 0, now, None)
        self._scheduler.submit(call, now)
        self._left = self._left and self._state.waiting > BATCH
        if self._left and self._way == WAYS[1]:
            self._to_the_front(call.rows[0])
        if self._patience_ns:
            self._at(now + self._patience_ns, lambda at: self._leave(call, at))

    def _to_the_front(self, row: Row) -> None:
        assert self._state.entry is not None
        rows = self._state.entry._lanes[0, 0].rows
        rows.pop()
        row.order = (-row.order[0], row.order[1])
        rows.appendleft(row)

    def _leave(self, call: Call, now: int) -> None:
        self._left = self._left or call.alive
        self._scheduler.cancel(call.id, now)

    def _next(self, now: int) -> int:
        return now + max(1, round(self._random.expovariate(self.rate)))

    def _at(self, time: int, act: Callable[[int], None]) -> None:
        heappush(self._events, (time, next(self._number), act))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="simulated, of each run [60]")
    seconds = parser.parse_args().seconds
    for clients, patience_s in (("clients that wait", 0.0), ("clients that leave after 2 s", 2.0)):
        rows = []
        for way in WAYS:
            runs = [Overload(load, way, patience_s).run(seconds) for load in LOADS]
            peak = seconds * S * BATCH / BATCH_NS
            rows.append(
                [way, *(f"{len(one.good) / peak:.2f}, {median(one.good):.2f} s, {one.refused / one.came:.2f}"
                        for one in runs)]
            )  # fmt: skip
        print(lines_table((clients, *(f"load {load:g}" for load in LOADS)), rows))
        print()


if __name__ == "__main__":
    main()
