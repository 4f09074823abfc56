"""The second driver of the Scheduler: the same object that serves, run in virtual time.

Rules
    1. Time is an integer number of nanoseconds and jumps from event to event. Nothing here reads a clock.
    2. Events at the same time are handled in the order finished, launched, copied, (cancel,) submit, tick, wake. Each
       finished unit has its own step, unless `one_step` says otherwise; other events of the same time share one step.
       There is no cancel, because simulated callers do not hang up. A unit waits for its launch and for the copies of
       its rows before it is on the device. The scheduler is not told of copies.
    3. Memory does not grow with the number of requests: latencies go into a Tally, and answered calls are dropped.

A node is one replica: a scheduler and its device. One Simulator has several nodes if a router must see them all;
otherwise each node has its own Simulator, with the same result. Each request has one row. A row of a length runs so
many steps at each stage that repeats, and ends there (`Outcome.ended`); one without a length runs one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from itertools import repeat

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, Klass, Outcome, Program, Row, Step, Unit

from .device import Device
from .report import Tally
from .transfers import Copied, CopyEngine

_FOLD = 8192  # latencies that are moved into the histogram at a time
PROGRAM = 1  # the id of the one program of a node


class Tie(IntEnum):
    """The order of events at the same time."""

    FINISHED = 0
    LAUNCHED = 1
    COPIED = 2
    SUBMIT = 3
    TICK = 4
    WAKE = 5


_FINISHED, _LAUNCHED, _COPIED, _SUBMIT, _TICK, _WAKE = (
    int(tie) for tie in Tie
)  # plain integers, compared for each event


@dataclass(slots=True, eq=False)
class Stepped(Row):
    """A row with the steps that the device has run of it at its stage, which must repeat."""

    made: int = 0


class Node:
    """One replica. `unanswered`: requests sent to it and not yet answered. `copies`: copies rows beside the units.

    `launch_ns`: what a unit costs beyond computing, to hand it over, launch it and learn of its end. All of it passes
    before the unit computes, which to the scheduler is the same. A unit handed to an idle worker starts that much
    later. The launch of a unit handed over behind a running one overlaps with it: the unit starts when the one before
    it has ended and its own launch is over.
    """

    __slots__ = (
        "armed", "cells", "copies", "copying", "device", "due", "index", "launch_ns", "launching", "scheduler", "taken",
        "timer", "touched", "unanswered",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        program: Program,
        device: Device,
        copies: CopyEngine | None = None,
        launch_ns: int = 0,
    ) -> None:
        if program.id != PROGRAM:
            raise ValueError(f"program: expected the id {PROGRAM}, got {program.id}")
        scheduler.add_program(program, 0)
        self.scheduler = scheduler
        self.device = device
        self.cells = frozenset(number for number, stage in enumerate(program.stages) if stage.repeats)
        self.copies = copies
        self.copying: list[tuple[int, int, Unit]] = []  # heap of (when copied, unit id, unit) that wait for copies
        self.launch_ns = launch_ns
        self.launching: deque[Unit] = deque()  # handed over and not yet launched; all launches take equally long
        self.taken: set[Unit] = set()  # of those that are launched or wait for copies, the ones that are taken back
        self.index = 0
        self.due: int | None = None  # the device's `due` of the last scheduled event
        self.timer: int | None = None  # when the scheduler wants a step
        self.armed: int | None = (
            None  # time of the scheduled wake event; never after `timer`, and replaced only at that time
        )
        self.touched = False  # it has had an input since its last step
        self.unanswered = 0


class Simulator:
    """Feeds requests to nodes and advances time. `route` chooses the node of the next request, `moved` is called when a
    node's `unanswered` changes; both may be None if there is one node. `one_step`: units that end at one time share
    one step with each other and with the requests of that time, as DVABatch's worked examples assume."""

    def __init__(
        self,
        nodes: Sequence[Node],
        tally: Tally,
        *,
        deadline_ns: int | None = None,
        tick_ns: int = 1_000_000_000,
        route: Callable[[], int] | None = None,
        moved: Callable[[Node], None] | None = None,
        one_step: bool = False,
    ) -> None:
        self.nodes = nodes
        self.tally = tally
        self.now = -1
        self._deadline_ns = deadline_ns
        self._tick_ns = tick_ns
        self._route = route
        self._moved = moved
        self._one_step = one_step
        self._touched: list[Node] = []
        self._events: list[tuple[int, int, int, int]] = []  # heap of (time, tie, sequence, node); one is always a tick
        self._sequence = 0
        self._calls = 0
        self._end = 0  # end of the last unit or time of the last request
        for index, node in enumerate(nodes):
            node.index = index
        self._at(tick_ns, _TICK, -1)

    def feed(
        self,
        instants: Iterable[int],
        lengths: Iterable[int] | None = None,
        klass: Klass = Klass.REALTIME,
        early_ns: Iterable[int] | None = None,
    ) -> None:
        """Feed requests at these times, in order and not before earlier ones. Runs all events up to the last one.

        `lengths`: of each request, if they have any. `klass`: of all of them. `early_ns`: how long before its time each
        request has arrived, from which its latency and its deadline count; None: at that time.
        """
        route, nodes, deadline_ns = self._route, self.nodes, self._deadline_ns
        node = nodes[0]
        fed = 0
        nothing = repeat(0)
        for at, length, early in zip(instants, lengths or nothing, early_ns or nothing, strict=False):
            if at != self.now:
                self._until(at)
            if route is not None:
                node = nodes[route()]
            fed += 1
            arrived = at - early
            deadline = None if deadline_ns is None else arrived + deadline_ns
            scheduler = node.scheduler
            if scheduler.admit(PROGRAM, 1, klass, deadline, at) is not None:
                self.tally.refused += 1
                scheduler.refused(PROGRAM, 1, at, klass)
                continue
            self._calls += 1
            rows = [Stepped(length=length) if node.cells else Row(length=length)]
            if node.copies is None:
                call = Call(self._calls, PROGRAM, rows, klass, 0, arrived, deadline)
            else:
                copied = node.copies.arrive(at)
                call = Copied(self._calls, PROGRAM, rows, klass, 0, arrived, deadline, copied=copied)
            scheduler.submit(call, at)
            node.unanswered += 1
            if self._moved is not None:
                self._moved(node)
            if not node.touched:
                node.touched = True
                self._touched.append(node)
        self._end = max(self._end, self.now)
        self.tally.requests += fed
        if len(self.tally.latencies) >= _FOLD:
            self.tally.fold()

    def drain(self) -> None:
        """Run all remaining events. Requests that a policy would hold forever stay unanswered."""
        while True:
            if self._touched and self._events[0][0] != self.now:
                self._settle()
            elif len(self._events) > 1 or self._touched:  # more than the tick
                self._next()
            else:
                break
        self.tally.fold()
        self.tally.close(self._end, [node.device for node in self.nodes])

    def _until(self, at: int) -> None:
        """Run all events before the requests at `at`."""
        events, touched = self._events, self._touched
        while True:
            head = events[0]
            time = head[0]
            if touched and time != self.now < at:  # requests of this time share the step
                self._settle()
            elif time > at or (time == at and head[1] > _SUBMIT):
                break
            else:
                self._next()
        self.now = at

    def _next(self) -> None:
        """Run the next event."""
        time, tie, _, index = heappop(self._events)
        self.now = time
        if tie == _TICK:
            for node in self.nodes:
                node.scheduler.tick(time)
                self._touch(node)
            self._at(time + self._tick_ns, _TICK, -1)
            return
        node = self.nodes[index]
        if tie == _FINISHED:
            if node.due == time:  # otherwise the prediction has changed since
                node.due = None
                unit, compute_ns = node.device.pop(time)
                self._end = time
                ended = _ended(unit) if unit.stage in node.cells else ()
                node.scheduler.finished(Outcome(unit.id, None, compute_ns, ended), time)
                if self._one_step:
                    self._touch(node)
                    self._watch(node)  # the next unit may end at this time as well
                else:
                    self._carry_out(node, node.scheduler.step(time))
        elif tie == _LAUNCHED:
            self._launched(node, node.launching.popleft())
            self._watch(node)
        elif tie == _COPIED:
            unit = heappop(node.copying)[2]
            if unit in node.taken:
                node.taken.remove(unit)
            else:
                node.device.push(unit, time)
                self._watch(node)
        elif node.armed == time:
            self._wake(node)

    def _wake(self, node: Node) -> None:
        node.armed = None
        if node.timer == self.now:
            self._touch(node)
        elif (
            node.timer is not None
        ):  # it was postponed, so that one event per node is enough for any number of deadlines
            node.armed = node.timer
            self._at(node.timer, _WAKE, node.index)

    def _touch(self, node: Node) -> None:
        if not node.touched:
            node.touched = True
            self._touched.append(node)

    def _settle(self) -> None:
        """Run the step of each node that had an input at this time, when all inputs of this time are known."""
        for node in self._touched:
            node.touched = False
            self._carry_out(node, node.scheduler.step(self.now))
        self._touched.clear()

    def _carry_out(self, node: Node, step: Step) -> None:
        """Carry out a Step as the engine does: start units, take units back, answer calls, fail calls, arm the timer.

        If units were taken back, the scheduler is asked for another Step, which is carried out as well.
        """
        now = self.now
        for unit in step.start:
            self.tally.started(len(unit.rows))
            if node.launch_ns:
                node.launching.append(unit)
                self._at(now + node.launch_ns, _LAUNCHED, node.index)
            else:
                self._launched(node, unit)
        self._watch(node)
        if step.done or step.drop:
            self._answer(node, step)
        node.timer = step.wake_at
        if step.wake_at is not None and (node.armed is None or step.wake_at < node.armed):
            node.armed = step.wake_at
            self._at(step.wake_at, _WAKE, node.index)
        if step.withdraw and self._withdraw(node, step.withdraw):
            self._carry_out(node, node.scheduler.step(now))

    def _withdraw(self, node: Node, units: Sequence[Unit]) -> bool:
        """Take back the units that have not begun; whether there are any."""
        taken = False
        on_the_way = {*node.launching, *(unit for _, _, unit in node.copying)}
        for unit in units:
            if unit in on_the_way:
                node.taken.add(unit)
            elif not node.device.withdraw(unit):
                continue
            node.scheduler.withdrawn(unit.id, self.now)
            taken = True
        return taken

    def _launched(self, node: Node, unit: Unit) -> None:
        """Put a launched unit on the device, at once or when the last of its rows has been copied."""
        if unit in node.taken:
            node.taken.remove(unit)
            return
        now = self.now
        copied = now if node.copies is None else node.copies.copied(unit)
        if copied <= now:
            node.device.push(unit, now)
        else:
            heappush(node.copying, (copied, unit.id, unit))
            self._at(copied, _COPIED, node.index)

    def _watch(self, node: Node) -> None:
        """Schedule the event of the next finished unit, if the device's prediction has changed."""
        due = node.device.due
        if due is not None and due != node.due:
            node.due = due
            self._at(due, _FINISHED, node.index)

    def _answer(self, node: Node, step: Step) -> None:
        now, latencies = self.now, self.tally.latencies
        for call in step.done:
            latencies.append(now - call.arrived)
            call.rows.clear()  # call and rows refer to each other; without this only the garbage collector frees them
        for drop in step.drop:
            self.tally.expired += 1
            drop.call.rows.clear()
        node.unanswered -= len(step.done) + len(step.drop)
        if self._moved is not None:
            self._moved(node)

    def _at(self, time: int, tie: int, node: int) -> None:
        self._sequence += 1
        heappush(self._events, (time, tie, self._sequence, node))


def _ended(unit: Unit) -> tuple[int, ...]:
    """Positions of the rows of which these were the last steps at their stage. Counts the steps."""
    ended = []
    for position, row in enumerate(unit.rows):
        assert isinstance(row, Stepped)
        row.made += unit.steps
        if row.made >= row.length:
            row.made = 0  # the next stage may repeat as well
            ended.append(position)
    return tuple(ended)
