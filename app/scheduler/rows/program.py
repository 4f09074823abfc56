"""The state of one program: its settings, queue counts, estimates of batch times and rates, and its policy."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from app.scheduler.estimates.batch_monitor import RateMonitor, algorithm_1, preferred_size, regression
from app.scheduler.estimates.latency import Latency, LiveTimes
from app.scheduler.estimates.lengths import LengthTimes, any_length
from app.scheduler.estimates.parts import StagePlan, padded, to_the_end
from app.scheduler.estimates.quantile import RunningQuantile
from app.scheduler.forming.workers import lead_of
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.patience import Patience
from app.scheduler.policies import Facts, policy_class
from app.scheduler.rows.batches import BatchTable
from app.scheduler.rows.ready import ReadySet
from app.scheduler.types import DeviceSpec, Klass, Outcome, Profile, Program, Unit

_NEARLY = 0.95  # share of the highest throughput that counts as the highest
#: Deadlines are planned with the time that this share of units keeps. Not all rows of the others are late. If times
#: vary much, a higher share leaves so much time unused that more rows are late (`experiments.many.deadlines`,
#: gamma:0.3: 94 % of calls in time with this, 81 % with 0.99).
_IN_TIME = 0.95
_LONGEST = 2.0  # times the prediction: the quantile never exceeds it
_QUANTILE_STEP = 0.05  # so that six units in a row that take 1.25 times as long are followed


class ProgramState:
    """What the scheduler knows of one program. The Ledger keeps the counts of rows, calls and units."""

    def __init__(self, program: Program, entry: ReadySet | None, device: DeviceSpec, now: int) -> None:
        self.program = program
        #: By stage and worker: the largest unit. `full`, by stage: the largest of any worker, within the bound of alive
        #: rows.
        self.capacity = [[min(worker.capacity, program.max_batch) for worker in device.workers] for _ in program.stages]
        self._room = min(device.max_alive, program.max_alive)
        self.full = [0] * len(program.stages)
        self.entry = entry  # the set that new real-time rows enter; None if that depends on their length
        self.policy = policy_class(program.policy)()
        self.latency = [Latency(stage.profile) for stage in program.stages]
        for stage in range(len(program.stages)):
            self._set_full(stage)
        self._profiled = self.line = regression(program.stages[0].profile.batch_ns)  # of the first stage
        self._lead_ns, self._most = lead_of(device), device.max_running
        self.facts = Facts(self._algorithm_1(0.0), may_hold=self.policy.holds, complete_wait=program.complete_wait)
        several = len(program.stages) > 1 or program.stages[0].repeats
        self.batches = BatchTable(len(program.stages)) if several else None  # else a row runs in one unit
        # If a cell is the whole program there are no other stages to see, unless the policy looks at its batch.
        alone = len(program.stages) == 1 and not self.policy.sees_lone_cells
        self.sees_stages = several and self.policy.sees_stages and not alone
        # Whether rows of the first stage may be picked by length, if times by length are known.
        self.picks = self.policy.reorders and program.reorder and not any(stage.repeats for stage in program.stages)
        #: By stage and number of waiting rows: the highest throughput, in rows per nanosecond until their end. Empty if
        #: some time is unknown, or if rows make several steps.
        self.speeds: tuple[tuple[float, ...], ...] = ()
        self._set_remaining()
        #: Of unit times over their predictions. Only for a program in one piece whose policy sees deadlines.
        plans_deadlines = self.policy.sees_deadlines and not several
        self.time_quantile = RunningQuantile(_IN_TIME, 1.0, _LONGEST, _QUANTILE_STEP) if plans_deadlines else None
        self.rate = RateMonitor(now)
        # In this window, by class: rows that arrived (refused ones included), and rows that ended well.
        self.asked, self.ended = [0 for _ in Klass], [0 for _ in Klass]
        self.demand_ns = [0 for _ in Klass]  # by class, of all windows that have closed: see `_count_demand`
        self._row_steps = 0  # of a cell, in this window: steps of its rows
        self._steps_each = 1.0  # steps of a row in the last window in which any ended
        self.patience = [Patience(program.max_queue, program.max_batch, now) for _ in Klass]
        #: Consecutive units that the model failed. A call of one row that fails alone does not count: that row may be
        #: bad.
        self.failures = 0
        self.alive = 0  # rows that have started and not ended
        self.waiting = 0  # rows in the ready table, of either class
        self.best_effort = 0  # those of them that are best effort
        self.calls = 0  # calls that have not left
        self.units = 0  # handed to workers and not finished
        self.closed = False
        #: By level: (valid until, Retry-After in nanoseconds), see `admission`.
        self.hints: dict[tuple[int, int], tuple[int, int]] = {}

    def waiting_of(self, klass: int) -> int:
        """Rows of one class in the ready table."""
        return self.best_effort if klass else self.waiting - self.best_effort

    @property
    def broken(self) -> bool:
        """Whether the model fails whatever it is given. A batch of n bad rows is halved into 2 n - 1 failing units;
        this is more.
        """
        return self.failures >= 3 * self.program.max_batch

    @property
    def preferred(self) -> int:
        """The preferred batch size: the policy's own, or else from the measured batch times."""
        target = self.policy.target(self.facts)
        if target is not None:
            return target
        if not all(latency.known for latency in self.latency):
            return 1
        return preferred_size(self.rate.rate, self.interval, self.program.max_batch)

    @property
    def live_times(self) -> list[LiveTimes]:
        """Corrections of each stage's times by live batches; empty if the profile is exact."""
        return [one.live for one in self.latency if one.live is not None]

    def time(self, rows: int, stage: int = 0, running: int = 1, length: int = 0, lead_ns: int = 0) -> int:
        """Nanoseconds for a batch of `rows` through all stages from `stage` on, while `running` units run at once.

        `lead_ns`: how long its worker is still busy with another unit. The hand-over takes place meanwhile.
        """
        first, *others = self.latency[stage:]
        later = sum(latency.predict(rows, running, length) for latency in others)
        return first.predict(rows, running, length, lead_ns) + later

    def unit_times(
        self, first: int, stage: int, steps: int, size: int, running: int, length: int
    ) -> tuple[int, tuple[int, ...]]:
        """Nanoseconds for one unit of several steps of a cell, or of several stages from `stage` on, and of each stage.

        `first`: the time of the first step or stage, with its hand-over.
        """
        if self.program.stages[stage].repeats:
            return first + (steps - 1) * self.latency[stage].compute(size, running, length), ()
        later = (one.compute(size, running, length) for one in self.latency[stage + 1 : stage + steps])
        times = (first, *later)
        return sum(times), times

    def interval(self, rows: int) -> int:
        """Nanoseconds between the ends of two batches of `rows` when batches follow one another without a pause."""
        return self.time(rows, lead_ns=self._lead_ns)

    def observe(self, unit: Unit, outcome: Outcome, now: int) -> None:
        """A unit has ended well now."""
        first = self.latency[unit.stage]
        times = outcome.times or (outcome.compute_ns // outcome.steps,)
        others = None if unit.behind or self._most == 1 else unit.others
        for latency, time in zip(self.latency[unit.stage :], times, strict=False):
            latency.observe(unit.size, time, unit.running, unit.length, others)
        if others is not None and first.live is not None:
            self.facts.crowded = first.live.shared.crowded
        if not unit.behind:  # else it is unknown when its worker began it
            first.handover.observe(now - unit.started - outcome.compute_ns)
        if self.time_quantile is not None and unit.predicted:
            self.time_quantile.observe((now - unit.begins) / unit.predicted)
        if self.program.stages[unit.stage].repeats:
            self._row_steps += unit.size * outcome.steps

    def cap(self, worker: int, rows: int, stage: int = 0) -> None:
        """A unit of more than `rows` rows ran out of this worker's memory at this stage."""
        capacity = self.capacity[stage]
        capacity[worker] = min(rows, capacity[worker])
        self._set_full(stage)

    def _set_full(self, stage: int) -> None:
        """Set the largest unit of a stage.

        At a cell whose policy trims, it is the smallest size with nearly the highest throughput: more rows would only
        slow all of them. A program of one unit is not trimmed: its rows also read their prompts, which is faster
        together and not in the times of its steps.
        """
        most = min(self._room, max(self.capacity[stage]))
        latency = self.latency[stage]
        trims = self.policy.trims_cells and self.program.stages[stage].repeats and not self.program.one_unit
        if trims and latency.known:
            speeds = [size / max(1, latency.predict(size)) for size in range(1, most + 1)]
            most = next(size for size, speed in enumerate(speeds, 1) if speed >= _NEARLY * max(speeds))
        self.full[stage] = most

    def tick(self, now: int) -> None:
        """The rate monitor's window has closed."""
        if self._room > self.program.max_alive:
            self._set_room()
        self.rate.tick(now, sum(self.asked))
        for patience, ended in zip(self.patience, self.ended, strict=True):
            patience.tick(now, ended)
        self._count_demand()
        for latency in self.latency:
            latency.tick()
        self.line = self._profiled.scaled(self.latency[0].planned)
        self.facts.preferred = self._algorithm_1(self.rate.rate)
        self._set_level()

    def _count_demand(self) -> None:
        """Add the device time that this window's rows need in full batches. At the device's peak rate that is 1 s a
        second.

        Smaller batches take longer per row, but they only form while there is time to spare.
        """
        if any(self.ended):
            self._steps_each = max(1.0, self._row_steps / sum(self.ended))
            self._row_steps, self.ended = 0, [0 for _ in Klass]
        if any(self.asked):
            each = 0.0
            for stage, latency, size in zip(self.program.stages, self.latency, self.full, strict=True):
                lead_ns = 0 if each else self._lead_ns
                time = latency.predict(size, self._most, lead_ns=lead_ns) / (self._most * size)
                each += time * self._steps_each if stage.repeats else time
            for klass, rows in enumerate(self.asked):
                self.demand_ns[klass] += round(rows * each)
            self.asked = [0 for _ in Klass]

    def reprofile(self, profile: Profile, stage: int = 0) -> None:
        """A stage has been measured anew. Online corrections start over."""
        self.latency[stage] = Latency(profile)
        self._set_full(stage)
        if stage == 0:
            self._profiled = self.line = regression(profile.batch_ns)
        self._set_remaining()
        self._set_level()

    def bound(self, max_alive: int) -> None:
        """At most `max_alive` rows may be alive at once from now on."""
        self.program = replace(self.program, max_alive=max_alive)
        self._set_room()

    def _set_room(self) -> None:
        """Apply the bound. While more rows are alive, units may be as large as that, so that these rows end sooner."""
        self._room = max(min(self._room, self.program.max_alive), self.alive)
        for stage in range(len(self.full)):
            self._set_full(stage)

    def set_control(self, control: ControlTables | None) -> None:
        """New tables, solved for all stages as one. A program with a cell has none."""
        if not any(stage.repeats for stage in self.program.stages):
            self.facts.control = control
            self.facts.may_hold = self.policy.holds or (control is not None and control.beside is not None)
            self._set_level()

    def _set_remaining(self) -> None:
        """Compute what policies are given of the profiles: times from each stage to the end."""
        self.speeds, facts = (), self.facts
        if not all(latency.known for latency in self.latency):
            facts.remaining, facts.lengths, facts.plan, facts.sizes = (), (), None, ()
            return
        sizes = range(1, self.program.max_batch + 1)
        times = [tuple(latency.predict(size) for size in sizes) for latency in self.latency]
        if not any(stage.repeats for stage in self.program.stages):
            self.speeds = tuple(map(_speeds, to_the_end(times)))
        facts.remaining = to_the_end(times)
        facts.plan = StagePlan.of(times) if self.sees_stages else None
        facts.lengths = self._by_length() if self.picks else ()
        facts.sizes = tuple(
            tuple(
                padded(tuple(latency.predict(size, units) for size in sizes))[1] for units in range(1, self._most + 1)
            )
            for latency in self.latency
        )

    def _by_length(self) -> tuple[LengthTimes, ...]:
        """T(b, length) from each stage to the end; () if no times by length are known."""
        if not any(latency.lengths for latency in self.latency):
            return ()
        parts = [latency.lengths or any_length(latency.batch_ns) for latency in self.latency]
        handovers = [latency.handover.profiled_ns for latency in self.latency]
        handovers[0] = max(0, handovers[0] - self._lead_ns)
        most = self.program.max_batch
        return tuple(LengthTimes(parts[stage:], most, sum(handovers[stage:])) for stage in range(len(parts)))

    def _algorithm_1(self, rate: float) -> int:
        handover_ns = max(0, self.latency[0].handover.ns - self._lead_ns)
        return algorithm_1(rate, self.line, self.program.max_batch, handover_ns)

    def _set_level(self) -> None:
        facts = self.facts
        facts.scale = sum(latency.planned for latency in self.latency) / len(self.latency)
        facts.rate = self.rate.steady
        if facts.control is not None:
            facts.scale = self._slowdown(facts.control.tail)
            facts.level = facts.control.level(facts.rate, facts.scale)

    def _slowdown(self, size: int) -> float:
        """Observed over profiled time of batches of `size`, hand-overs included: the mean over the stages."""
        first, *others = self.latency
        slower = [first.slowdown(size, self._most, self._lead_ns), *(one.slowdown(size, self._most) for one in others)]
        return sum(slower) / len(slower)


def _speeds(times: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(accumulate((rows / time for rows, time in enumerate(padded(times)[0], 1)), max))
