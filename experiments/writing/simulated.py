"""A decoder's worker in virtual time, with the server's scheduler: `python -m experiments.writing.simulated`.

Two choices are compared, at WMT-like lengths and with the times of T5-small's and GPT-2-small's shapes on one core: how
long rows may read between two steps of those under way, and whether rows that wait join these at the next step or where
`adaptive` predicts that it pays. Each row reads by itself here, where the server has those of about one length read
together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

import numpy as np

from app.scheduler.estimates.fields import MS, interpolate
from app.scheduler.policies import policy_for
from app.scheduler.prefill import LEAST
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Profile, Program, Row, Stage, Step, Unit, WorkerSpec
from experiments.writing.live import LARGEST, LENGTHS
from experiments.writing.models import WRITTEN
from planner.drawn_lengths import Lengths

ENDLESS = 1e9  # milliseconds
RATES = {"t5": (4.0, 8.0, 10.5), "gpt2": (0.8, 1.6, 2.1)}  # texts a second
SERVED = "3 steps"  # what the server does
_HAND_OVER_NS, _WINDOW_NS = 200_000, 1_000_000_000
_MEAN = 25  # tokens of a text


class Shape(NamedTuple):
    """Milliseconds of a step by rows, of reading a row, and of each token of it."""

    step_ms: dict[int, float]
    row_ms: float
    token_ms: float

    def steps(self) -> tuple[int, ...]:
        """Nanoseconds by rows."""
        return tuple(round(time * MS) for time in interpolate(self.step_ms, range(1, LARGEST + 1)))


SHAPES = {
    "t5": Shape({1: 18, 8: 30, 16: 40, 32: 62}, 12, 0.65),
    "gpt2": Shape({1: 50, 4: 64, 8: 80, 32: 205}, 35, 2.8),
}


class Between(NamedTuple):
    """Two steps: what one takes, for how many rows, and what each row that waits takes to read. Milliseconds."""

    step_ms: float
    going: int
    reads_ms: list[float]


def predicted(now: Between) -> float:
    """All that wait, if they gain more by beginning a step sooner than rows lose that end meanwhile; else nothing."""
    gained, lost = len(now.reads_ms) * now.step_ms, now.going / _MEAN * sum(now.reads_ms)
    return ENDLESS if gained >= lost else 0.0


#: How many milliseconds rows may read between two steps of others.
READING: dict[str, Callable[[Between], float]] = {
    "50 ms": lambda now: 50.0,
    "3 steps": lambda now: max(50.0, 3 * now.step_ms),
    "all": lambda now: ENDLESS,
    "predicted": predicted,
}


@dataclass(slots=True, eq=False)
class Text(Row):
    """A row with the tokens that it is still to read and to write. `began`: when it had its first."""

    unread: int = 0
    unwritten: int = 0
    began: int = 0


class Worker:
    """Makes the steps of a unit as the server's does. `due`: when the one that runs ends, None while it has no unit.

    `held_ms`: how long rows that read held up each step of others.
    """

    def __init__(self, shape: Shape, reading: Callable[[Between], float]) -> None:
        self.unit: Unit | None = None
        self.made = 0  # steps of the unit
        self.due: int | None = None
        self.held_ms: list[float] = []
        self._shape, self._reading, self._steps = shape, reading, shape.steps()
        self._texts: list[Text] = []  # of the unit
        self._going: list[Text] = []  # those that make the step
        self._spent_ns = 0  # by steps of the unit

    def take(self, unit: Unit, now: int) -> None:
        self.unit, self._texts = unit, [row for row in unit.rows if isinstance(row, Text)]
        self.made, self._spent_ns = 0, 0
        self._begin(now)

    def step_over(self, now: int) -> Outcome | None:
        """A step has ended, and with it the unit; None: the next one has begun."""
        unit, texts = self.unit, self._texts
        assert unit is not None
        for text in self._going:
            text.unwritten -= 1
            text.began = text.began or now
        self.made += 1
        ended = tuple(place for place, text in enumerate(texts) if not text.unwritten)
        if not ended and not unit.recalled and self.made < unit.steps:
            self._begin(now)
            return None
        self.unit = self.due = None
        continues = unit.continue_without and not unit.recalled and 0 < len(ended) < len(texts)
        times = (self._spent_ns // self.made,)
        return Outcome(unit.id, None, self._spent_ns, ended, self.made, times, continues)

    def _begin(self, now: int) -> None:
        going = [text for text in self._texts if not text.unread]
        new = [text for text in self._texts if text.unread]
        read_ms = self._read(new, len(going)) if new else 0.0
        if going and new:
            self.held_ms.append(read_ms)
        self._going = [text for text in self._texts if not text.unread]
        step_ns = self._steps[len(self._going) - 1] if self._going else 0
        self._spent_ns += step_ns
        self.due = now + round(read_ms * MS) + step_ns

    def _read(self, new: list[Text], going: int) -> float:
        """Milliseconds for which rows read: as long as they may, but a piece at least where they may at all."""
        shape, spent = self._shape, 0.0
        reads = [shape.row_ms + shape.token_ms * text.unread for text in new]
        bound = self._reading(Between(self._steps[going - 1] / MS, going, reads)) if going else ENDLESS
        for text in new if bound else ():
            fits = int((bound - spent - shape.row_ms) / shape.token_ms)
            least = min(text.unread, LEAST)
            if spent and fits < least:
                break
            tokens = min(text.unread, max(least, fits))
            text.unread -= tokens
            spent += shape.row_ms + shape.token_ms * tokens
        return spent


class Figures(NamedTuple):
    """Milliseconds: of whole texts, until their first tokens, and for which a step was held up by rows that read."""

    mean: float
    p99: float
    first: float
    first_p99: float
    held_p99: float


def simulate(shape: Shape, rate: float, reading: str, requests: int, *, joins: bool = True) -> Figures:
    """`rate`: texts a second; `joins`: at the next step, else where that is predicted to pay."""
    stage = Stage(Profile(shape.steps(), handover_ns=_HAND_OVER_NS), repeats=True, most_steps=WRITTEN, own_steps=True)
    scheduler = Scheduler(DeviceSpec((WorkerSpec(LARGEST),), multi_step=True))
    scheduler.add_program(
        Program(1, "m", (stage,), policy_for("adaptive", "latency"), LARGEST, max_queue=requests, one_unit=joins), 0
    )
    worker, calls = Worker(shape, READING[reading]), _calls(shape, rate, requests)
    answered: list[tuple[Text, int]] = []
    window, fed, now = _WINDOW_NS, 0, 0

    def carry_out(step: Step) -> None:
        answered.extend((text, now) for call in step.done for text in call.rows if isinstance(text, Text))
        for unit in step.start:
            worker.take(unit, now + _HAND_OVER_NS)

    while len(answered) < requests:
        arrival = calls[fed].arrived if fed < requests else window
        now = min(arrival, window, window if worker.due is None else worker.due)
        if now == worker.due:
            outcome = worker.step_over(now)
            if outcome is None:
                continue
            following = scheduler.finished(outcome, now)
            if following is not None:
                worker.take(following, now)
        elif fed < requests and now == arrival:
            if worker.unit is not None:
                scheduler.progressed(worker.unit.id, worker.made, now)
            scheduler.submit(calls[fed], now)
            fed += 1
        else:
            scheduler.tick(now)
            window += _WINDOW_NS
        carry_out(scheduler.step(now))
    whole = [(ended - text.call.arrived) / MS for text, ended in answered]
    first = [(text.began - text.call.arrived) / MS for text, _ in answered]
    held = np.percentile(worker.held_ms or [0.0], 99)
    return Figures(mean(whole), np.percentile(whole, 99), mean(first), np.percentile(first, 99), held)


def _calls(shape: Shape, rate: float, requests: int) -> list[Call]:
    gaps = np.random.default_rng(1).exponential(1e9 / rate, requests)
    arrivals = np.cumsum(gaps).astype(np.int64).tolist()
    read, written = (Lengths(LENGTHS, [0, stream]).draw(requests).tolist() for stream in (4, 5))
    return [
        Call(number, 1, [Text(number, length, unread=length, unwritten=most)], Klass.REALTIME, 0, at, None)
        for number, (at, length, most) in enumerate(zip(arrivals, read, written, strict=True))
    ]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--rates", type=float, nargs="*", help="texts a second [some three, up to nearly all it can]")
    parser.add_argument("--requests", type=int, default=3000)
    chosen = parser.parse_args(arguments)
    print("shape  texts/s  reading    joins         mean      p99    first  its p99  a step held up, p99 ms")
    for kind in chosen.kinds:
        for rate in chosen.rates or RATES[kind]:
            for reading, joins in [*((name, True) for name in READING), (SERVED, False)]:
                found = simulate(SHAPES[kind], rate, reading, chosen.requests, joins=joins)
                figures = "".join(f"{value:9.0f}" for value in found)
                how = "at once" if joins else "predicted"
                print(f"{kind:5s}{rate:9.1f}  {reading:10s} {how:9s}{figures}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
