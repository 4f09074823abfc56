"""The second driver of the Scheduler: runs the object that serves in virtual time. Why so: docs/theory/simulator.md.

Rules
    1. Time is integer nanoseconds and jumps from event to event. Nothing here reads a clock.
    2. Events at the same time are handled in the order finished, launched, front, submit, tick, wake. Each finished
       unit has its own step, except with `one_step`; other events of the same time share one.
    3. Memory does not grow with the number of requests.

A node is one replica: a scheduler and its device. If a router must see all, one Simulator has several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import repeat

from app.scheduler.types import Call, Klass, Outcome, Row, Step, Unit

from .node import PROGRAM, Node, continues
from .row_steps import Stepped, ended
from .simulated_front import FrontRequest, FrontWork, LoopPart, SimulatedFront
from .tally import Tally

_FOLD = 8192  # latencies that are moved into the histogram at a time


#: The order of events at the same time.
_FINISHED, _LAUNCHED, _FRONT, _SUBMIT, _TICK, _WAKE = range(6)


class Simulator:
    """Feeds requests to nodes and advances time.

    `route` chooses the node of the next request, and `moved` is called when a node's `unanswered` changes; both may be
    None if there is one node. `one_step`: units that end at the same time share one step with each other and with the
    requests of that time, as DVABatch's worked examples assume.
    """

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
        steps: Iterable[int] | None = None,
        *,
        klass: Klass = Klass.REALTIME,
    ) -> None:
        """Feed requests at these times, which must be in order. Runs all events up to the last one.

        `lengths`, `steps`: one for each request, if given. `klass`: of all these requests.
        """
        route, nodes = self._route, self.nodes
        node = nodes[0]
        fed = 0
        for at, length, most in zip(instants, lengths or repeat(0), steps or repeat(0), strict=False):
            if at != self.now:
                self._until(at)
            if route is not None:
                node = nodes[route()]
            fed += 1
            if node.front is None:
                self._submit(node, at, length, most, klass)
                continue
            self._count(node, 1)
            node.front.put([FrontWork(LoopPart.READ, FrontRequest(at, length, most, klass))], at)
            self._follow(node, node.front)
        self._end = max(self._end, self.now)
        self.tally.requests += fed
        if len(self.tally.latencies) >= _FOLD:
            self.tally.fold()

    def _submit(self, node: Node, arrived: int, length: int, steps: int, klass: Klass) -> None:
        """Submit a request to the scheduler. Its deadline counts from its arrival."""
        now, scheduler = self.now, node.scheduler
        deadline = None if self._deadline_ns is None else arrived + self._deadline_ns
        if scheduler.admit(PROGRAM, 1, klass, deadline, now) is not None:
            self.tally.refused += 1
            scheduler.refused(PROGRAM, 1, now, klass)
            if node.front is not None:
                self._count(node, -1)
            return
        self._calls += 1
        unread = length if node.decodes else 0
        rows = [Stepped(length=length, most=steps or length, unread=unread) if node.cells else Row(length=length)]
        scheduler.submit(Call(self._calls, PROGRAM, rows, klass, 0, arrived, deadline), now)
        if node.front is None:
            self._count(node, 1)
            self._touch(node)
        else:
            node.submitted = True

    def _count(self, node: Node, requests: int) -> None:
        node.unanswered += requests
        if self._moved is not None:
            self._moved(node)

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
        fronts = [node.front for node in self.nodes if node.front is not None]
        self.tally.close(self._end, [node.device for node in self.nodes], fronts)

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
            if node.due == time:  # else the prediction has changed since
                node.due = None
                unit, compute_ns = node.device.pop(time)
                self._end = time
                over = ended(unit) if unit.stage in node.cells else ()
                outcome = Outcome(unit.id, None, compute_ns, over, times=node.device.step_times)
                if node.front is not None and not node.has_more(unit):
                    node.front.put([FrontWork(LoopPart.ENDED, outcome)], time)
                    self._follow(node, node.front)
                    self._watch(node)
                    return
                node.scheduler.finished(outcome, time)
                if self._one_step:
                    self._touch(node)
                    self._watch(node)  # the next unit may end at this time as well
                else:
                    self._carry_out(node, node.scheduler.step(time), unit)
        elif tie == _LAUNCHED:
            node.device.push(heappop(node.launching)[2], time)
            self._watch(node)
        elif tie == _FRONT:
            if node.front is not None and node.front_due == time:
                node.front_due = None
                self._work(node, node.front)
        elif node.armed == time:
            self._wake(node)

    def _work(self, node: Node, front: SimulatedFront) -> None:
        """The front's loop has done a piece of work, or a helper thread has decoded a request."""
        now, work = self.now, front.pop(self.now)
        if work is None:
            pass
        elif work.part is LoopPart.READ and front.costs.aside:
            front.decode(work.what, now)
        elif work.part in (LoopPart.READ, LoopPart.SUBMIT):
            self._submit(node, *work.what)
        elif work.part is LoopPart.START:
            self._hand_over(node, work.what)
        elif work.part is LoopPart.ENDED:
            if work.what is not None:
                node.scheduler.finished(work.what, now)
                node.submitted = False
                self._carry_out(node, node.scheduler.step(now))
        else:
            self._answered(node, work.what, front.costs.path_ns)
        if front.turn_over and node.submitted:
            node.submitted = False
            self._touch(node)
        self._follow(node, front)

    def _follow(self, node: Node, front: SimulatedFront) -> None:
        """Schedule the event of the front's next piece of work, and let the device follow the front's busy threads."""
        if front.due is not None and front.due != node.front_due:
            self._at(front.due, _FRONT, node.index)
        node.front_due = front.due
        if front.moved:
            front.moved = False
            node.device.follow_front(self.now)
            self._watch(node)

    def _wake(self, node: Node) -> None:
        node.armed = None
        if node.timer == self.now:
            self._touch(node)
        elif node.timer is not None:  # the timer was postponed: schedule its one event again
            node.armed = node.timer
            self._at(node.timer, _WAKE, node.index)

    def _touch(self, node: Node) -> None:
        if not node.touched:
            node.touched = True
            self._touched.append(node)

    def _settle(self) -> None:
        """Run the step of each node that had an input at this time. Called when all inputs of this time are known."""
        for node in self._touched:
            node.touched = False
            self._carry_out(node, node.scheduler.step(self.now))
        self._touched.clear()

    def _carry_out(self, node: Node, step: Step, ended: Unit | None = None) -> None:
        """Carry out a Step as the engine does: start units, answer calls, fail calls, arm the timer.

        `ended`: the unit whose end this is, if the loop has not been told of it yet: a worker goes on by itself.
        """
        now = self.now
        starts = []
        for unit in step.start:
            self.tally.started(len(unit.rows))
            if ended is not None and continues(ended, unit):
                node.device.push(unit, now)
            elif node.front is None:
                self._hand_over(node, unit)
            else:
                starts.append(FrontWork(LoopPart.START, unit))
        self._watch(node)
        if node.front is not None:
            works = [*starts, *(FrontWork(LoopPart.ANSWER, call) for call in step.done)]
            if ended is None:
                node.front.insert(works, now)
            elif works:
                node.front.put([FrontWork(LoopPart.ENDED, None), *works], now)
            self._follow(node, node.front)
        else:
            for call in step.done:
                self._answered(node, call, 0)
        for drop in step.drop:
            self.tally.expired += 1
            drop.call.rows.clear()
            self._count(node, -1)
        node.timer = step.wake_at
        if step.wake_at is not None and (node.armed is None or step.wake_at < node.armed):
            node.armed = step.wake_at
            self._at(step.wake_at, _WAKE, node.index)

    def _hand_over(self, node: Node, unit: Unit) -> None:
        """Push a unit to the device, at once or when its launch is over."""
        launched = node.launched_at(unit, self.now)
        if launched <= self.now:
            node.device.push(unit, self.now)
            self._watch(node)
        else:
            heappush(node.launching, (launched, unit.id, unit))
            self._at(launched, _LAUNCHED, node.index)

    def _watch(self, node: Node) -> None:
        """Schedule the event of the next finished unit, if the device's prediction has changed."""
        due = node.device.due
        if due is not None and due != node.due:
            node.due = due
            self._at(due, _FINISHED, node.index)

    def _answered(self, node: Node, call: Call, path_ns: int) -> None:
        self.tally.latencies.append(self.now - call.arrived + path_ns)
        call.rows.clear()  # call and rows refer to each other; without this only the garbage collector frees them
        self._count(node, -1)

    def _at(self, time: int, tie: int, node: int) -> None:
        self._sequence += 1
        heappush(self._events, (time, tie, self._sequence, node))
