"""What is estimated of one program: its batch times, its arrival rate, and the control tables for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import exp

from app.scheduler.estimates.batch_monitor import RateMonitor, algorithm_1, preferred_size, regression
from app.scheduler.estimates.curve import Curve
from app.scheduler.estimates.lengths import LengthTimes, any_length
from app.scheduler.estimates.parts import StagePlan, padded, to_the_end
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.types import DeviceSpec, Program


class Estimates:
    """Updated at ticks and by new profiles; its curves by ends of units, see `learn`."""

    def __init__(self, program: Program, device: DeviceSpec, now: int) -> None:
        self._program, self._device = program, device
        self.latency = [Curve(stage.profile, device.max_running) for stage in program.stages]
        self._profiled = self.line = regression(program.stages[0].profile.batch_ns)  # of the first stage
        self.curves = Curves(self.latency, program, device)
        self.arrivals = RateMonitor(now)
        self.scale = 1.0  # observed over profiled time of a batch, its hand-over included
        self.control: ControlTables | None = None  # of all stages as one; None: not solved
        self.level = -1  # the control table for the load as it is
        self.preferred = self._algorithm_1(0.0)  # rows: Algorithm 1 of Khan et al., at each tick
        self.row_steps = 0  # of a cell, in this window: steps of its rows
        self._steps_each = 1.0  # steps of a row in the last window in which any ended

    # predictions

    def time(self, rows: int, stage: int = 0, running: int = 1, length: int = 0, lead_ns: int = 0) -> int:
        """Nanoseconds for a batch of `rows` through all stages from `stage` on, while `running` units run at once.

        `lead_ns`: how long its worker is still busy with another unit. The hand-over takes place meanwhile.
        """
        first, *others = self.latency[stage:]
        later = sum(latency.predict(rows, running, length) for latency in others)
        return first.predict(rows, running, length, lead_ns) + later

    def interval(self, rows: int) -> int:
        """Nanoseconds between the ends of two batches of `rows` when batches follow one another without a pause."""
        return self.time(rows, lead_ns=self._device.lead_ns)

    def most_per_time(self) -> int:
        """The preferred batch size by the measured batch times; 1 if they are unknown."""
        if not all(latency.known for latency in self.latency):
            return 1
        return preferred_size(self.arrivals.rate, self.interval, self._program.max_batch)

    def hopeful(self, most: int) -> int:
        """The size up to `most` that serves the most rows per second if it is as fast as its error allows.

        Of many sizes some 64 are looked at, because calls wait meanwhile.
        """

        def fastest(size: int) -> float:
            return self.time(size, running=self._device.max_running) / exp(max(one.error(size) for one in self.latency))

        return max(range(most, 0, -max(1, most // 64)), key=lambda size: size / fastest(size))

    def row_ns(self, full: Sequence[int]) -> float:
        """Device time of a row in full batches, of so many rows by stage. At the device's peak rate, 1 s a second.

        Smaller batches take longer per row, but they only form while there is time to spare.
        """
        each, most = 0.0, self._device.max_running
        for stage, latency, size in zip(self._program.stages, self.latency, full, strict=True):
            lead_ns = 0 if each else self._device.lead_ns
            time = latency.predict(size, most, lead_ns=lead_ns) / (most * size)
            each += time * self._steps_each if stage.repeats else time
        return each

    # what happens

    def count_steps(self, ended: int) -> None:
        """So many rows have ended in this window."""
        if ended:
            self._steps_each = max(1.0, self.row_steps / ended)
            self.row_steps = 0

    def tick(self, now: int, rows: int) -> None:
        """The rate monitor's window has closed; so many rows arrived in it."""
        self.arrivals.tick(now, rows)
        for latency in self.latency:
            latency.tick()
        self.line = self._profiled.scaled(self.latency[0].planned)
        self.preferred = self._algorithm_1(self.arrivals.rate)
        self._set_level()

    def reprofile(self, profile: Profile, stage: int = 0) -> None:
        """A stage has been measured anew. Online corrections start over."""
        self.latency[stage] = Curve(profile, self._device.max_running)
        if stage == 0:
            self._profiled = self.line = regression(profile.batch_ns)
        self.curves = Curves(self.latency, self._program, self._device)
        self._set_level()

    def set_control(self, control: ControlTables | None) -> None:
        """New tables, solved for all stages as one. A program with a cell has none."""
        if not any(stage.repeats for stage in self._program.stages):
            self.control = control
            self._set_level()

    def _algorithm_1(self, rate: float) -> int:
        handover_ns = max(0, self.latency[0].handover.ns - self._device.lead_ns)
        return algorithm_1(rate, self.line, self._program.max_batch, handover_ns)

    def _set_level(self) -> None:
        self.scale = sum(latency.planned for latency in self.latency) / len(self.latency)
        if self.control is not None:
            self.scale = self._slowdown(self.control.tail)
            self.level = self.control.level(self.arrivals.steady, self.scale)

    def _slowdown(self, size: int) -> float:
        """Observed over profiled time of batches of `size`, hand-overs included: the mean over the stages."""
        leads, most = [self._device.lead_ns, *[0] * (len(self.latency) - 1)], self._device.max_running
        slower = [one.slowdown(size, most, lead_ns) for one, lead_ns in zip(self.latency, leads, strict=True)]
        return sum(slower) / len(slower)


class Curves:
    """Batch times by stage and size when the program was last profiled, and what follows of them.

    Everything is empty while the times of some stage are unknown. `sizes`: by stage, running units and rows, the size
    at which so many rows run fastest.
    """

    def __init__(self, latency: Sequence[Curve], program: Program, device: DeviceSpec) -> None:
        known = all(one.known for one in latency)
        self._latency = list(latency) if known else []
        self._program, self._lead_ns = program, device.lead_ns
        rows = range(1, program.max_batch + 1)
        self._times = [tuple(one.predict(size) for size in rows) for one in self._latency]
        self.sizes = tuple(
            tuple(
                padded(tuple(one.predict(size, units) for size in rows))[1]
                for units in range(1, device.max_running + 1)
            )
            for one in self._latency
        )  # fmt: skip

    @cached_property
    def remaining(self) -> tuple[tuple[int, ...], ...]:
        """By stage and size: nanoseconds from there to the end, with one step of each cell."""
        return to_the_end(self._times)

    @cached_property
    def plan(self) -> StagePlan | None:
        """The fastest way through the stages."""
        return StagePlan.of(self._times) if self._times else None

    @cached_property
    def speeds(self) -> tuple[tuple[float, ...], ...]:
        """By stage and number of waiting rows: the highest throughput, in rows per nanosecond until their end.

        Empty if rows make several steps.
        """
        return () if self._repeats else tuple(map(_speeds, self.remaining))

    @cached_property
    def lengths(self) -> tuple[LengthTimes, ...]:
        """T(b, length) from each stage to the end.

        Empty if no times by length are known, rows may not be picked by length, or there is a cell.
        """
        latency = self._latency
        if not self._program.policy.reorder or self._repeats or not any(one.lengths for one in latency):
            return ()
        parts = [one.lengths or any_length(one.batch_ns) for one in latency]
        handovers = [one.handover.profiled_ns for one in latency]
        handovers[0] = max(0, handovers[0] - self._lead_ns)
        most = self._program.max_batch
        return tuple(LengthTimes(parts[stage:], most, sum(handovers[stage:])) for stage in range(len(parts)))

    @property
    def _repeats(self) -> bool:
        return any(stage.repeats for stage in self._program.stages)


def _speeds(times: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(accumulate((rows / time for rows, time in enumerate(padded(times)[0], 1)), max))
