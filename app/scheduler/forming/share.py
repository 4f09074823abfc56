"""How much of the device rows may have now: real time before best effort, with preemption at boundaries (REEF).

Best-effort units start only when no real-time row could. Their predicted times add up to at most the budget; beside
real-time units they must also slow no real-time program by more than the bound. Units that run while a real-time row
could but for a worker, or that break a rule, are recalled. The rules: docs/theory/order-and-share.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.scheduler.estimates.pairs import PairSlowdowns
from app.scheduler.policies import Offer
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import ReadySet, longest_of
from app.scheduler.types import DeviceSpec, Klass, Unit
from app.scheduler.workers import Workers, running_stage

_BEST_EFFORT = Klass.BEST_EFFORT  # looked up once, used per step
UNBOUNDED = 1 << 62  # as a slowdown: the pair was not measured


class Share:
    """Of one device. While there is no best-effort work, the loop does not use it.

    `units`: best-effort units that have not ended, by id. `pairs` is set by the driver. `hold`: start no best-effort
    unit in this step; `held`: one could have started.
    """

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        self._device = device
        self._ledger = ledger
        self._workers = workers
        self._most = max(1, workers.at_once - 1)  # workers that may run best-effort units
        self._best = best_workers(device)
        self._budget_ns = device.classes.budget_ns
        self.units: dict[int, Unit] = {}
        self.pairs: PairSlowdowns = {}
        self.hold = self.held = False
        self._realtime_waits = False  # a real-time row could start but for a worker

    def end(self, held: Collection[ReadySet]) -> None:
        """Units have been formed, but not of these sets. Only of use while there is best-effort work."""
        sets = self._ledger.ready.nonempty
        self._realtime_waits = any(ready.klass is not _BEST_EFFORT and ready not in held for ready in sets)

    # whether a unit starts

    def room(self, state: ProgramState) -> int:
        """New best-effort rows of a program that may start now.

        They leave room for one more real-time batch, but get at least half of all room. Otherwise real-time rows would
        have to wait until best-effort rows have passed all their stages.
        """
        most, own = self._device.max_alive, state.program.max_alive
        batch = max(other.full[0] for other in self._ledger.states.values())
        return self._ledger.room(state, min(most // 2, batch), min(own // 2, state.full[0]))

    def for_realtime(self, usable: Sequence[int]) -> Sequence[int]:
        """Those of the usable workers that a real-time unit may take.

        The best ones, unless all of these are busy and another is idle.
        """
        best = [worker for worker in usable if worker in self._best]
        idle = [worker for worker in best if not self._workers.of(worker)]
        return idle or (usable if not best or self._workers.idle(usable) else best)

    def limit(self, offer: Offer, now: int) -> None:
        """Limit an offer of best-effort rows to the largest unit that may start now; 0 rows if none may."""
        self._limit_by_rules(offer, now)
        if offer.rows and self.hold:
            self.held, offer.rows = True, 0

    def _limit_by_rules(self, offer: Offer, now: int) -> None:
        """The same, but for `hold`."""
        most, realtime = offer.rows, self._realtime_units()
        offer.usable = self._open_to_best_effort(offer.usable)
        offer.rows = 0
        if not offer.usable or (realtime and not self._may_join(offer.ready.key[0], realtime)):
            return
        latency = offer.state.estimates.latency[offer.stage]
        largest = max(offer.state.capacity[offer.stage][worker] for worker in offer.usable)
        if not latency.known:
            offer.rows = offer.exact = 0 if self.units else min(most, largest)
            return
        running, _ = offer.free()
        length = longest_of(offer.first(most)) if latency.by_length else 0
        times = [latency.predict(rows, running, length) for rows in range(1, most + 1)]
        left = self._budget_left(now)
        in_time = [time <= left for time in times]
        if not in_time[0]:
            self._offer_one_row(offer, times[0], left, now)
            return
        exact = in_time.index(False) if False in in_time else most
        rows = exact if offer.cell else max(rows for rows, kept in enumerate(in_time, 1) if kept)
        offer.exact = min(exact, largest)
        offer.rows = rows if rows <= largest else offer.exact

    def _open_to_best_effort(self, usable: Sequence[int]) -> Sequence[int]:
        """Idle workers: a unit pushed behind another would delay real-time calls that arrive meanwhile."""
        usable = [worker for worker in usable if not self._workers.of(worker)]
        busy = {unit.worker for unit in self.units.values()}
        if len(busy) >= self._most:
            return [worker for worker in usable if worker in busy]
        free = self._best - busy
        return [worker for worker in usable if worker not in free] if len(free) == 1 else usable

    def _realtime_units(self) -> list[Unit]:
        return [unit for unit in self._workers.units.values() if unit.id not in self.units]

    def _may_join(self, program: int, realtime: list[Unit]) -> bool:
        """Rule 2 for a unit that would start on an idle worker."""
        beside = {unit.worker: unit.program for unit in reversed(self.units.values())}
        return self._slows_little([program, *beside.values()], realtime)

    def _slows_little(self, programs: Sequence[int], realtime: list[Unit]) -> bool:
        """Rule 2 for these best-effort programs, running at once."""
        most, pairs = self._device.classes.slowdown, self.pairs
        return all(
            sum(pairs.get((program, other), UNBOUNDED) for other in programs) <= most
            for program in {unit.program for unit in realtime}
        )

    def _offer_one_row(self, offer: Offer, time: int, left: int, now: int) -> None:
        """A unit of one row may start although it takes longer than is `left` of the budget, if it is alone."""
        if self.units:
            ending = self._budget_left(now + 1) - left  # how many units count for less as time passes
            if time <= self._budget_ns and ending:  # else only the end of a unit makes room
                offer.until = now - (left - time) // ending  # rounded up
            return
        realtime = self._realtime_units()
        if not realtime or time <= max(left_ns(unit, now, whole=True) for unit in realtime):
            offer.rows = offer.exact = 1

    def _budget_left(self, now: int) -> int:
        """Nanoseconds of best-effort work that may be handed over in addition: none beside a unit of unknown time."""
        budget = self._budget_ns
        return budget - sum(left_ns(unit, now) if unit.forecast.predicted else budget for unit in self.units.values())

    def steps(self, steps: int, unit: Unit, state: ProgramState) -> int:
        """How many of `steps` stages or steps a worker may run as this best-effort unit.

        It can be recalled after each of them, so each single one must be known and within the budget.
        """
        if steps == 1 or state.program.stages[unit.stage].repeats:
            return steps
        left, forecast = self._budget_left(unit.started), unit.forecast
        following = (
            latency.compute(unit.size, forecast.running, forecast.length)
            for latency in state.estimates.latency[unit.stage + 1 : unit.stage + steps]
        )
        return next((place for place, time in enumerate(following, 1) if not 0 < time <= left), steps)

    # whether a unit continues

    def preempts(self, unit: Unit) -> bool:
        """Whether a best-effort unit is to end at its next boundary: real time could use its worker, or it breaks
        rule 2. One behind others ends with its first stage or step.
        """
        if self._realtime_waits:
            return True
        realtime = self._realtime_units()
        return bool(realtime) and self._padding(realtime).get(unit.worker) != unit.program

    def _padding(self, realtime: list[Unit]) -> dict[int, int]:
        """The workers whose best-effort units may continue beside these, with their programs.

        Together they keep rule 2. Workers are tried in order, so that the result is stable from step to step.
        """
        found: dict[int, int] = {}
        first = {unit.worker: unit.program for unit in reversed(self.units.values())}
        for worker, program in sorted(first.items()):
            if self._slows_little([*found.values(), program], realtime):
                found[worker] = program
        return found


def left_ns(unit: Unit, now: int, *, whole: bool = False) -> int:
    """Predicted time until a unit ends or, if it has several stages or steps, can be recalled. `whole`: until it ends.

    A later stage that takes longer counts instead, because the worker begins it by itself. At a cell each step follows
    another as long as itself: a whole one counts until the unit ends.
    """
    if whole or unit.course.steps == 1 or unit.course.recalled:
        return max(0, unit.forecast.predicted - max(0, now - unit.forecast.begins))
    if unit.forecast.times:
        stage, left = running_stage(unit, now)
        return max(left, *unit.forecast.times[stage + 1 :], 0)
    return unit.forecast.predicted // unit.course.steps


def best_workers(device: DeviceSpec) -> frozenset[int]:
    """The workers of the highest priority, and the largest of these: one of them is kept free of best-effort work.

    Empty if only one unit runs at a time.
    """
    if min(len(device.workers), device.max_running) == 1:
        return frozenset()
    ranks = [(-worker.priority, worker.capacity) for worker in device.workers]
    return frozenset(worker for worker, rank in enumerate(ranks) if rank == max(ranks))
