"""Forms units: which key, which rows of it, which worker.

While a worker is usable: the arbiter names the key with the best head; a group of that key that must be run again goes
as it is; otherwise the key's policy cuts a unit or holds the key back until a time. Of the rows cut, those that are
predicted to end after their deadline leave instead, and others take their places: in overload a device that finishes
late work does nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from app.scheduler.ahead import Ahead
from app.scheduler.arbiter import Arbiter
from app.scheduler.going_on import ends_early, steps_of
from app.scheduler.lanes import Alike
from app.scheduler.ledger import Ledger
from app.scheduler.policies import Around, Cut, Hold, KeyView
from app.scheduler.program import ProgramState
from app.scheduler.ready import Key, ReadySet, rank
from app.scheduler.types import DeviceSpec, Formed, Operation, Reason, Row, Unit
from app.scheduler.workers import Workers

_NEVER = 1 << 62
_LATE_TIMER_NS = 2_000_000  # event loops wake up to a millisecond late; a hold must not end too late for a deadline


class Dispatch:
    """One device's: it takes rows from the ledger's table and gives units to the workers."""

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        self._device = device
        self._ledger = ledger
        self._workers = workers
        self._arbiter = Arbiter(ledger.ready)
        self.ahead = Ahead(ledger)
        self._next_unit = 0

    def run(self, start: list[Unit], now: int) -> int | None:
        """Add to `start` all units that can start; return when to ask again if nothing happens before, or None."""
        workers, ledger = self._workers, self._ledger
        if workers.full:
            return None  # the step that most calls get
        held: list[ReadySet] = []
        wake_at: int | None = None
        while True:
            ready = self._arbiter.first(held)
            if ready is None and not self.ahead.units:
                return wake_at
            usable = workers.usable(now)
            if not usable:
                return _earlier(wake_at, workers.next_opening(now))
            if self.ahead.units and self._push_ahead(ready, usable, start, now):
                continue
            if ready is None:
                return _earlier(wake_at, workers.next_opening(now))
            drops = len(ledger.drops)
            hold = self._serve(ready, usable, start, now)
            if len(ledger.drops) > drops:  # keys held so far may have waited for the room of late calls, or for them
                held.clear()
            if hold is None and held:  # nor do later stages wait any more for rows that have started
                held = [other for other in held if _not_behind(other, ready)]
            elif hold is not None:
                held.append(ready)
                wake_at = _earlier(wake_at, hold.until)

    def recall(self, now: int) -> list[Unit]:
        """Of units that workers go on with by themselves, those that are to end with the step or stage that runs."""
        waiting = self._arbiter.first(())
        head = None if waiting is None else waiting.head()
        level = None if head is None else (head.call.klass, head.call.priority)
        going = [(unit, self._ledger.states[unit.program]) for unit in self._workers.going.values()]
        recalled = [unit for unit, state in going if ends_early(unit, state, level, self._room(state))]
        for unit in recalled:
            self._workers.recall(unit, now)
        return recalled

    def _push_ahead(self, ready: ReadySet | None, usable: Sequence[int], start: list[Unit], now: int) -> bool:
        """Push the next step of a cell behind the one that runs, unless other rows go first; False if there is none.

        `ready`: whose turn it is of the rows that wait.
        """
        found = self.ahead.first(usable)
        if found is None:
            return False
        first, unit = found
        key = (unit.program, unit.stage, 0)
        state, ledger = self._ledger.states[unit.program], self._ledger
        waiting = ledger.ready.at(key, unit.klass)
        head = None if ready is None else ready.head()
        if ready is not None and head is not None:
            others = (ready is not waiting or waiting.retries) and rank(head) < first
            if others or self._workers.idle(usable):
                return False
        room, full = self._room(state), state.full[unit.stage]
        most = min(full, state.capacity[unit.stage][unit.worker])
        going = set(self.ahead.going_on(unit))
        joining = waiting.first(most, room) if not waiting.retries else ()
        rows = sorted([*going, *joining], key=rank)[:most]
        if ledger.deadlines and self._drop_those_late(rows, len(rows), unit.stage, unit.worker, state, now):
            return True
        waiting.take(sum(row not in going for row in rows), room)
        going.intersection_update(rows)
        self.ahead.push(unit, [row for row in rows if row in going])
        cut = Cut(len(rows), len(rows), Formed.FULL if len(rows) == full else Formed.IDLE)
        self._start(key, rows, cut, [unit.worker], start, now, going)
        return True

    def _serve(self, ready: ReadySet, usable: Sequence[int], start: list[Unit], now: int) -> Hold | None:
        """Start one unit of this key, or say until when the key is held back."""
        program, stage, _ = ready.key
        state = self._ledger.states[program]
        # Rows that start take up room on the device; those that go on, in a cell or at a later stage, have theirs.
        room = self._room(state)
        going = ready.going() if stage or state.program.stages[0].repeats else 0
        capacities = sorted((state.capacity[stage][worker] for worker in usable), reverse=True)
        limit = min(capacities[0], room + going)
        if limit < 1:
            return Hold(None)
        group = ready.take_retry(limit, room)
        if group:
            self._start(ready.key, group, Cut(len(group), len(group), Formed.RETRY), usable, start, now)
            return None
        view = self._view(ready, state, usable, limit, room + going, now)
        decision = state.policy.decide(view, capacities, now)
        if isinstance(decision, Hold):
            return decision
        if self._ledger.deadlines and self._drop_late(ready, state, decision, usable, now):
            return None  # fewer rows wait now, so all is asked again
        if decision.divide and state.batches is not None and view.around is not None:
            state.batches.divide(list(ready.first(view.around.here, room)), decision.divide)
        picked = decision.shorter >= 0
        rows = ready.take_beside(decision.rows, decision.shorter) if picked else ready.take(decision.rows, room)
        self._start(ready.key, rows, decision, usable, start, now)
        return None

    def _room(self, state: ProgramState) -> int:
        """Rows of a program that may start now: as many as the device has room for, and the program itself."""
        return min(self._device.max_alive - self._ledger.alive, state.program.max_alive - state.alive)

    def _view(
        self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, room: int, now: int
    ) -> KeyView:
        facts = state.facts[ready.key[1]]
        waiting = ready.free_count
        running = self._workers.running(usable)
        due = _NEVER
        if facts.may_hold and self._ledger.deadlines:
            late_ns = self._workers.soonest(usable, now) - now  # a unit handed over now begins so much later
            due = self._due(ready, state, min(waiting, limit), running, late_ns) - late_ns
        return KeyView(
            ready=waiting,
            limit=limit,
            full=state.full[ready.key[1]],
            oldest=ready.oldest(),
            max_delay=state.program.max_delay_ns,
            room=room,
            due=due,
            free=self._workers.free(len(usable)),
            running=running,
            facts=facts,
            around=self._around(ready, state, min(waiting, limit)) if state.sees_stages else None,
            alike=_alike(ready, min(waiting, limit)) if facts.lengths and not ready.key[1] else None,
        )

    def _around(self, ready: ReadySet, state: ProgramState, most: int) -> Around:
        """What lies beside this key, of the rows of its class; `most`: rows of it that one unit can have."""
        program, stage, bucket = ready.key
        stages = state.program.stages
        room = self._room(state)
        alike, waiting = [0] * len(stages), [0] * len(stages)  # in this length bucket, and in all
        oldest, beside = ready.oldest(), 0
        for other in self._ledger.ready.of_program(program, ready.klass):
            _, at, lengths = other.key
            waiting[at] += other.count
            alike[at] += other.count * (lengths == bucket)
            if at == stage and other is not ready and other.free_count:
                beside += other.count
                oldest = min(oldest, other.oldest())
        units = self._workers.units.values()
        running = sum(len(unit.rows) for unit in units if unit.program == program and unit.klass is ready.klass)
        active = running + sum(waiting[1:])
        if not stages[0].repeats:
            alike[0], waiting[0] = min(alike[0], room), min(waiting[0], room)
        short = [0 if one.repeats else count for one, count in zip(stages, waiting, strict=True)]
        nearest = max((at for at in range(stage) if alike[at]), default=-1)
        first = list(ready.first(most, room))
        batch = first[0].batch if first else None
        here = next((place for place, row in enumerate(first) if row.batch is not batch), len(first))
        latest = state.batches.latest(ready.klass) if state.batches is not None else None
        around = Around(
            stage=stage,
            cell=stages[stage].repeats,
            batch=batch,
            here=here,
            joined=any(row.entered == stage for row in first),
            latest=latest if latest is not None and latest.bucket == bucket else None,
            formed=latest.created if latest is not None else -1,
            active=active,
            beside=beside,
            oldest=oldest,
            nearest=(nearest, alike[nearest] if nearest >= 0 else 0),
            ahead=sum(alike[stage + 1 :]),
            following=next((at for at in range(stage + 1, len(stages)) if alike[at]), -1),
            before=sum(short[:stage]),
            after=sum(short[stage + 1 :]),
        )
        if state.facts[stage].lengths:
            self._compare(around, first, ready)
        return around

    def _compare(self, around: Around, first: Sequence[Row], ready: ReadySet) -> None:
        """Fill in the lengths of the rows around a set, of which these are the first."""
        program, stage, bucket = ready.key
        around.longest = _longest(first)
        for other in self._ledger.ready.of_program(program, ready.klass):
            _, at, lengths = other.key
            if lengths != bucket:
                continue
            if at > stage:
                around.longest_ahead = max(around.longest_ahead, _longest(other.rows()))
            elif at == around.nearest[0] and at:
                around.longest_behind = _longest(other.rows())
            elif at == around.nearest[0] and (alike := _alike(other, around.nearest[1])) is not None:
                around.fitting = len(alike.like(around.longest))

    def _due(self, ready: ReadySet, state: ProgramState, rows: int, running: int, lead_ns: int) -> int:
        """When a unit of the first `rows` must begin, so that none of them ends after its deadline.

        `lead_ns`: so long before that it is handed over.
        """
        first = list(ready.first(rows, self._room(state)))
        deadlines = [row.call.deadline for row in first if row.call.deadline is not None]
        if not deadlines:
            return _NEVER
        time = state.time(rows, ready.key[1], running, _longest(first), lead_ns)
        return min(deadlines) - time - time // 4 - _LATE_TIMER_NS

    def _drop_late(self, ready: ReadySet, state: ProgramState, cut: Cut, usable: Sequence[int], now: int) -> bool:
        """Let the calls leave of which a row would run in this unit and end after its deadline; True if there were."""
        worker = self._workers.choose(usable, cut.size, state.capacity[ready.key[1]])
        if cut.shorter >= 0:
            rows = ready.beside(cut.rows, cut.shorter)
        else:
            rows = list(ready.first(cut.rows, self._room(state)))
        return self._drop_those_late(rows, cut.size, ready.key[1], worker, state, now)

    def _drop_those_late(
        self, rows: Sequence[Row], size: int, stage: int, worker: int, state: ProgramState, now: int
    ) -> bool:
        """As `_drop_late`, of these rows as a batch of `size` on this worker."""
        workers = self._workers
        begins = workers.begins(worker, now)
        time = state.time(size, stage, workers.running([worker]), _longest(rows), begins - now)
        ends = begins + time
        late = {call.id: call for row in rows if (call := row.call).deadline and call.deadline < ends}
        for call in late.values():
            self._ledger.drop(call, Reason.DEADLINE_UNREACHABLE)
        return bool(late)

    def _start(
        self,
        key: Key,
        rows: list[Row],
        cut: Cut,
        usable: Sequence[int],
        start: list[Unit],
        now: int,
        going: Collection[Row] = (),
    ) -> None:
        """Hand the rows to a worker as one unit. `going`: those of them that are in a unit of its already."""
        program, stage, bucket = key
        state = self._ledger.states[program]
        size = max(cut.size, len(rows))
        worker = self._workers.choose(usable, size, state.capacity[stage])
        running = self._workers.running([worker])
        lead_ns = self._workers.begins(worker, now) - now
        length = _longest(rows) if state.latency[stage].by_length else 0
        batches = state.batches
        self._ledger.start([row for row in rows if row not in going] if going else rows, state)
        if batches is not None:
            for row in going:  # it goes on from there as if it stood there
                batches.stand(row)
        steps = 1
        if batches is not None and self._device.goes_on and cut.reason is not Formed.RETRY:
            steps = steps_of(rows, size, stage, state, worker)
        operation = Operation.NEW if batches is None else batches.launch(rows, stage, bucket, now, cut.joins)
        if cut.divide:
            operation = Operation.SPLIT
        unit = Unit(
            id=self._next_unit,
            worker=worker,
            program=program,
            stage=stage,
            rows=rows,
            size=size,
            reason=cut.reason,
            started=now,
            predicted=state.unit_time(stage, steps, size, running, length, lead_ns),
            running=running,
            steps=steps,
            length=length,
            operation=operation,
        )
        self._next_unit += 1
        self._workers.take(unit, now)
        start.append(unit)


def _alike(ready: ReadySet, most: int) -> Alike | None:
    """What a policy that picks rows by length sees of them: a unit of at most `most` is cut."""
    ready.sort_by_length()
    return ready.alike(most - 1)


def _not_behind(held: ReadySet, ready: ReadySet) -> bool:
    """Whether a set that is held stands at no later stage than one of the same program from which rows start."""
    return held.key[0] != ready.key[0] or held.key[1] <= ready.key[1]


def _longest(rows: Iterable[Row]) -> int:
    return max((row.length for row in rows), default=0)


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
