"""Plays a workload against one scheduler in virtual time: several programs, clients that wait for answers.

`planner` feeds one program from arrivals that do not depend on answers; here the clients of a workload decide when to
launch. Rules are the simulator's: a finished unit has its own step, other events of one time share one, and their order
is finished, launched, submit, tick, wake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from heapq import heappop, heappush

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, Klass, Program, Row, Step, Unit
from app.scheduler.types import Outcome as UnitOutcome
from experiments.disb.client.figures import Outcome
from experiments.disb.client.schedule import Launch, Players
from experiments.disb.client.workload import Workload
from experiments.disb.gpu import ModelledGpu

_TICK_NS = 1_000_000_000
CLASSES = {"realtime": Klass.REALTIME, "best_effort": Klass.BEST_EFFORT}


class Tie(IntEnum):
    """The order of events at the same time."""

    FINISHED = 0
    LAUNCHED = 1
    SUBMIT = 2
    TICK = 3
    WAKE = 4


@dataclass(frozen=True, slots=True)
class Server:
    """What the clients ask. `programs`: by the name of a model and the class of the task.

    A unit is on its stream `launch_ns` after it was handed over. `prompt`: a client that launches with an answer does
    so before the next unit is chosen; else a unit of somebody else may begin first, as with any real client.
    """

    scheduler: Scheduler
    programs: Mapping[tuple[str, str], Program]
    device: ModelledGpu
    launch_ns: int = 0
    prompt: bool = True


@dataclass(slots=True)
class Played:
    """`wait_ns`: by real-time task, from each launch until its first unit was on its stream. `end_ns`: of the last
    answer."""

    outcomes: tuple[Outcome, ...]
    wait_ns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    units: int = 0
    end_ns: int = 0


class _Clients:
    def __init__(self, server: Server, players: Players) -> None:
        self.found = Played(())
        self._server = server
        self._players = players
        self._events: list[tuple[int, int, int, Callable[[], bool]]] = []  # (time, tie, sequence, act)
        self._sequence = 0
        self._calls: list[Launch] = []  # by id of the call
        self._due: int | None = None  # the device's, of the last scheduled event
        self._timer: int | None = None
        self._launching: dict[int, bool] = {}  # by id of a unit that is being launched: it is recalled already
        self._told: set[int] = set()  # calls whose clients got the answer before the step that gives it
        self.now = 0

    def run(self) -> None:
        for program in self._server.programs.values():
            self._server.scheduler.add_program(program, 0)
        self._submit_later(self._players.begin())
        self._at(_TICK_NS, Tie.TICK, self._tick)
        while self._events:
            self.now, tie, _, act = heappop(self._events)
            changed = act()
            while tie > Tie.FINISHED and self._events[0:1] and self._events[0][0] == self.now:
                changed |= heappop(self._events)[3]()
            if changed:
                self._step()

    def _step(self) -> None:
        self._carry_out(self._server.scheduler.step(self.now))

    def _at(self, time: int, tie: Tie, act: Callable[[], bool]) -> None:
        """`act` returns whether the scheduler has had an input."""
        self._sequence += 1
        heappush(self._events, (time, int(tie), self._sequence, act))

    def _submit_later(self, launches: list[Launch]) -> None:
        for launch in launches:
            self._at(launch.at, Tie.SUBMIT, partial(self._submit, launch))

    def _submit(self, launch: Launch) -> bool:
        self._players.launched(launch, self.now)
        server, task = self._server, self._players.played[launch.task].task
        klass = CLASSES[task.klass]
        program = server.programs[task.model, task.klass]
        refusal = server.scheduler.admit(program.id, task.rows, klass, None, self.now, 0)
        if refusal is not None:
            raise RuntimeError(f"{task.id}: expected every request to be admitted, got {refusal.reason}")
        rows = [Row() for _ in range(task.rows)]
        server.scheduler.submit(Call(len(self._calls), program.id, rows, klass, 0, self.now, None), self.now)
        self._calls.append(launch)
        return True

    def _tick(self) -> bool:
        if not self._players.over:
            self._server.scheduler.tick(self.now)
            self._at(self.now + _TICK_NS, Tie.TICK, self._tick)
        return True

    def _carry_out(self, step: Step) -> None:
        server = self._server
        for unit in step.start:
            self.found.units += 1
            self._launching[unit.id] = False
            if server.launch_ns:
                self._at(self.now + server.launch_ns, Tie.LAUNCHED, partial(self._launched, unit))
            else:
                self._launched(unit)
        for unit in step.recall:
            if unit.id in self._launching:
                self._launching[unit.id] = True
            else:
                server.device.recall(unit, self.now)
        self._watch()
        for call in step.done:
            self.found.end_ns = self.now
            if call.id in self._told:
                self._told.remove(call.id)
            else:
                self._submit_later(self._players.ended(self._calls[call.id].task, self.now, True))
            call.rows.clear()  # call and rows refer to each other
        if step.drop:
            raise RuntimeError(f"expected every request to be answered, got {step.drop[0].reason}")
        if step.wake_at is not None and step.wake_at != self._timer:
            self._at(step.wake_at, Tie.WAKE, lambda: True)
        self._timer = step.wake_at

    def _launched(self, unit: Unit) -> bool:
        recalled = self._launching.pop(unit.id)
        self._server.device.push(unit, self.now)
        if recalled:
            self._server.device.recall(unit, self.now)
        self._watch()
        for row in unit.rows:
            if row.index == 0 and not unit.klass:  # a real-time row is one unit
                task = self._players.played[self._calls[row.call.id].task].task
                self.found.wait_ns[task.id].append(self.now - row.call.arrived)
        return False

    def _watch(self) -> None:
        """Schedule the end of the next unit, if the device's prediction has changed."""
        due = self._server.device.due
        if due is not None and due != self._due:
            self._due = due
            self._at(due, Tie.FINISHED, self._finished)

    def _finished(self) -> bool:
        if self._due != self.now:  # the prediction has changed since
            return False
        self._due = None
        ended = self._server.device.pop(self.now)
        if ended is None:
            self._watch()
            return False
        unit, compute_ns, alone = ended
        times = tuple(round(time * compute_ns / sum(alone)) for time in alone) if len(alone) > 1 else ()
        outcome = UnitOutcome(unit.id, None, compute_ns, (), len(alone), times)
        self._server.scheduler.finished(outcome, self.now)
        self._watch()
        if self._server.prompt:
            for call in dict.fromkeys(row.call for row in unit.rows if row.call.left == 0):
                self._answered_early(call)
        return True

    def _answered_early(self, call: Call) -> None:
        self._told.add(call.id)
        for launch in self._players.ended(self._calls[call.id].task, self.now, True):
            if launch.at == self.now:
                self._submit(launch)
            else:
                self._submit_later([launch])


def play(workload: Workload, server: Server, seed: int = 0, alone_ns: Mapping[str, int] | None = None) -> Played:
    """Play the workload to its end. `alone_ns`: latency of each task alone, by id."""
    players = Players(workload, seed, alone_ns)
    clients = _Clients(server, players)
    clients.run()
    clients.found.outcomes = tuple(
        Outcome(played, None if alone_ns is None else alone_ns[played.task.id] / 1e6) for played in players.played
    )
    return clients.found
