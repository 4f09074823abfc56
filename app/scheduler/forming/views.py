"""Builds what a policy sees of a key (`KeyView`): the waiting rows, the other stages, and the room on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.scheduler.estimates.quantile import RunningQuantile
from app.scheduler.forming.share import Share
from app.scheduler.forming.workers import Workers, running_stage
from app.scheduler.policies import KeyView, Neighbours
from app.scheduler.policies.view import NEVER, Schedule
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import LengthWindow, ReadySet, longest_of
from app.scheduler.types import Batch, DeviceSpec, Row, Unit

LATE_TIMER_NS = 2_000_000  # timers count as at least so late: event loops wake up to a millisecond late
_TIMER_STEP_NS = 500_000
_ON_TIME = 0.99  # share of timers that are no later than expected; a hold that ends too soon costs only device time


class Views:
    """Views of the keys of one device."""

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers, share: Share) -> None:
        self._device = device
        self._ledger = ledger
        self._workers = workers
        self._share = share
        #: How late the driver's timers are, in nanoseconds: a hold must end that much before a deadline requires it.
        self.timers = RunningQuantile(_ON_TIME, LATE_TIMER_NS, 10 * LATE_TIMER_NS, _TIMER_STEP_NS)

    def of(
        self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, room: int, now: int
    ) -> KeyView:
        """The view of a ready set. At most `limit` rows of it may start as one unit on one of the usable workers."""
        facts, most = state.facts, min(ready.count, limit)
        due, schedule = NEVER, None
        if state.time_quantile is not None and self._ledger.deadlines.heap:
            schedule = self._schedule(ready, state, usable, limit, room, now)
        elif facts.may_hold and self._ledger.deadlines.heap:
            late_ns = self._workers.soonest(usable, now) - now  # a unit handed over now begins so much later
            running, _ = self._workers.running_and_free(usable)
            due = self._due(ready, state, most, running, late_ns) - late_ns
        return KeyView(
            ready=ready.count,
            limit=limit,
            full=state.full[ready.key[1]],
            oldest=ready.oldest,
            max_delay=state.program.max_delay_ns,
            room=room,
            due=due,
            running_and_free=lambda: self._workers.running_and_free(usable),
            facts=facts,
            stage=ready.key[1],
            column=self._column(state, usable, now) if self._workers.busy else 0,
            shared=lambda: self._shared(ready.key[0]),
            neighbours=self._neighbours(ready, state, most, now) if state.sees_stages else None,
            length_window=_length_window(ready, most) if facts.lengths and not ready.key[1] else None,
            schedule=schedule,
        )

    def _schedule(
        self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, room: int, now: int
    ) -> Schedule | None:
        """The deadlines of the first rows, and batch times; None if no row has a deadline, or times are unknown."""
        rows = ready.first(limit, room)
        deadlines = _deadlines(rows)
        sizes, quantile = state.facts.sizes, state.time_quantile
        if quantile is None or not sizes or min(deadlines, default=NEVER) == NEVER:
            return None
        begins, longest = self._workers.soonest(usable, now), longest_of(rows)
        running, _ = self._workers.running_and_free(usable)
        padded = sizes[0][min(running, len(sizes[0])) - 1]

        def time(rows: int, length: int = longest) -> int:
            size = padded[rows - 1] if padded[rows - 1] <= limit else rows
            return round(quantile.value * state.time(size, 0, running, length, begins - now))

        def similar(rows: int, shorter: int) -> list[int]:
            return _deadlines(ready.similar(rows, shorter))

        workers = min(self._device.max_running, len(self._device.workers))
        return Schedule(begins, deadlines, time, workers, round(self.timers.value), similar)

    def _shared(self, program: int) -> bool:
        """Whether rows of other programs wait or run."""
        waiting = any(ready.key[0] != program for ready in self._ledger.ready.nonempty)
        return waiting or any(unit.program != program for unit in self._workers.units.values())

    def _column(self, state: ProgramState, usable: Sequence[int], now: int) -> int:
        """The column of the control tables of several workers, by the time that the other workers have left.

        0 if more than one worker is free, or all running units are overdue by more than the largest batch takes. A unit
        that began with fewer beside it is assumed to take longer from now on, as in the tables.
        """
        facts = state.facts
        if facts.control is None or (beside := facts.control.beside) is None:
            return 0
        _, free = self._workers.running_and_free(usable)
        if free > 1:
            return 0
        most, total, size = self._device.max_running, 0.0, 0
        overdue = now - beside.times[-1] * facts.scale
        units = [unit for unit in self._workers.last_units(usable) if unit.begins + unit.predicted > overdue]
        for unit in units:
            left = max(0, unit.begins + unit.predicted - now) / facts.scale
            if unit.program == state.program.id:
                size, latency = max(size, unit.size), state.latency[unit.stage]
                if unit.running < most and latency.known:
                    left *= latency.predict(unit.size, most) / latency.predict(unit.size, unit.running)
            total += left
        return beside.column(size, total / (most - 1)) if units else 0

    def _neighbours(self, ready: ReadySet, state: ProgramState, most: int, now: int) -> Neighbours:
        """The batches and other stages around this key, of its class. `most`: the largest unit of this key now."""
        program, stage, bucket = ready.key
        stages = state.program.stages
        room = self._share.room(state, ready.klass)
        same_bucket, waiting = [0] * len(stages), [0] * len(stages)  # by stage: in this length bucket, in all buckets
        oldest, other_buckets, begun = ready.oldest(), 0, 0
        for other in self._ledger.ready.of_program(program, ready.klass):
            _, at, lengths = other.key
            begun += 0 if at else other.started
            waiting[at] += other.count
            same_bucket[at] += other.count * (lengths == bucket)
            if at == stage and other is not ready and not other.again:
                other_buckets += other.count
                oldest = min(oldest, other.oldest())
        units = self._workers.units.values()
        running = sum(len(unit.rows) for unit in units if unit.program == program and unit.klass is ready.klass)
        active = running + sum(waiting[1:])
        most_before = room + begun  # rows of the first stage that could run: others must wait for room
        same_bucket[0], waiting[0] = min(same_bucket[0], most_before), min(waiting[0], most_before)
        short = [0 if one.repeats else count for one, count in zip(stages, waiting, strict=True)]
        upstream_stage = max((at for at in range(stage) if same_bucket[at]), default=-1)
        first = ready.first(most, room)
        batch = first[0].batch if first else None
        here = next((place for place, row in enumerate(first) if row.batch is not batch), len(first))
        latest = state.batches.latest(ready.klass) if state.batches is not None else None
        under_way = self._under_way(latest, state)
        last = under_way is not None and _stage_of(under_way, now) == len(stages) - 1
        joinable = latest is not None and latest.bucket == bucket and not last
        neighbours = Neighbours(
            cell=stages[stage].repeats,
            batch=batch,
            here=here,
            newcomers=any(row.entered == stage for row in first),
            latest=latest if joinable else None,
            last_formed=latest.created if latest is not None else -1,
            active=active,
            other_buckets=other_buckets,
            oldest=oldest,
            upstream_stage=upstream_stage,
            upstream=same_bucket[upstream_stage] if upstream_stage >= 0 else 0,
            downstream=sum(same_bucket[stage + 1 :]),
            downstream_stage=next((at for at in range(stage + 1, len(stages)) if same_bucket[at]), -1),
            waiting_before=sum(short[:stage]),
            waiting_after=sum(short[stage + 1 :]),
            missing=self._late(batch, stage, state, now),
        )
        if state.facts.lengths:
            self._add_lengths(neighbours, first, ready)
        return neighbours

    def _under_way(self, batch: Batch | None, state: ProgramState) -> Unit | None:
        """The running unit of several stages that holds this batch, if there is one."""
        if batch is None:
            return None
        stages = state.program.stages
        units = (unit for unit in self._workers.units.values() if unit.rows[0].batch is batch)
        return next((unit for unit in units if unit.steps > 1 and not stages[unit.stage].repeats), None)

    def _late(self, batch: Batch | None, stage: int, state: ProgramState, now: int) -> int:
        """Rows of a batch that have not reached a stage.

        Rows in a unit of several stages count as being where they are predicted to be.
        """
        if batch is None or not stage:
            return 0
        late, unit = batch.size - batch.completed[stage - 1], self._under_way(batch, state)
        return late - len(unit.rows) if unit and unit.stage < stage <= _stage_of(unit, now) else late

    def _add_lengths(self, neighbours: Neighbours, first: Sequence[Row], ready: ReadySet) -> None:
        """Fill in the lengths of rows at the other stages, compared with the `first` rows of this set."""
        program, stage, bucket = ready.key
        neighbours.longest = longest_of(first)
        for other in self._ledger.ready.of_program(program, ready.klass):
            _, at, lengths = other.key
            if lengths != bucket:
                continue
            if at > stage:
                neighbours.longest_downstream = max(neighbours.longest_downstream, other.longest())
            elif at == neighbours.upstream_stage and at:
                neighbours.longest_upstream = max(neighbours.longest_upstream, other.longest())
            elif at == neighbours.upstream_stage and not other.again:
                neighbours.joinable = len(_length_window(other, neighbours.upstream).joining(neighbours.longest))

    def _due(self, ready: ReadySet, state: ProgramState, rows: int, running: int, lead_ns: int) -> int:
        """When a unit of the first `rows` must begin, so that none of them ends after its deadline.

        `lead_ns`: how long before that it is handed over.
        """
        first = ready.first(rows, self._share.room(state, ready.klass))
        deadlines = [row.call.deadline for row in first if row.call.deadline is not None]
        if not deadlines:
            return NEVER
        time = state.time(rows, ready.key[1], running, longest_of(first), lead_ns)
        return min(deadlines) - time - time // 4 - LATE_TIMER_NS


def _stage_of(unit: Unit, now: int) -> int:
    """The stage that a unit of several stages is predicted to run now; its last one if times are unknown."""
    return unit.stage + running_stage(unit, now)[0]


def _deadlines(rows: Iterable[Row]) -> list[int]:
    return [NEVER if row.call.deadline is None else row.call.deadline for row in rows]


def _length_window(ready: ReadySet, most: int) -> LengthWindow:
    """The lengths that a policy may pick from, for a unit of at most `most` rows."""
    ready.sort_by_length()
    return ready.length_window(most - 1)
