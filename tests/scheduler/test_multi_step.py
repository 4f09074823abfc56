"""Units of several steps, and the batches that rows keep at all stages."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.profile import Profile
from app.scheduler.rows.batches import BatchTable
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, Klass, Operation, Outcome, Stage, Step, Unit

from .driven import MS, feed, finish, serving, writer
from .world import make_call, make_program

# Units of several steps or stages, which a worker goes on with by itself until it is recalled.


CELL = (Stage(Profile((10, 20, 30, 40), handover_ns=5), repeats=True),)


def enter(scheduler: Scheduler, call: Call) -> Step:
    return feed(scheduler, call, now=call.arrived)


def end(scheduler: Scheduler, unit: Unit, now: int, steps: int, **options: object) -> Step:
    return finish(scheduler, unit, now, compute_ns=now - unit.started, steps=steps, **options)


def latency_of(scheduler: Scheduler, rows: int) -> int:
    """Of a step, as it is known now, without handing it over."""
    return scheduler.states[1].estimates.latency[0].compute(rows)


class TestCells:
    def test_rows_of_another_program_take_their_turn(self) -> None:
        """Between two steps, after 5 ms: a text of 300 steps would keep them for as long."""
        scheduler = serving(writer(1), *(make_program(i, batch_ns=(MS,), policy="no_wait") for i in (2, 3)))
        (unit,) = enter(scheduler, make_call(1, lengths=(300,))).start
        step = enter(scheduler, make_call(2, program=2, arrived=MS))
        assert (step.recall, step.wake_at) == ([], 5 * MS)
        enter(scheduler, make_call(3, program=3, arrived=2 * MS, priority=1))  # whose turn never comes
        assert scheduler.step(5 * MS).recall == [unit]
        served = []
        for now, steps in ((6, 3), (7, 1), (307, 297)):
            (unit,) = end(scheduler, unit, now * MS, steps, ended=(0,) * (steps != 3)).start
            served.append((unit.program, unit.rows[0].call.id))
        assert served == [(2, 2), (1, 1), (3, 3)]

    def test_texts_take_longer_turns_without_others(self) -> None:
        """Of 20 ms, or of 5 where a row comes. All are older than it, and all but one of them did not run last."""
        scheduler = serving(*map(writer, (1, 2, 3)), make_program(4, batch_ns=(MS,), policy="no_wait"))
        (unit,) = enter(scheduler, make_call(1, lengths=(300,))).start
        for ident in (2, 3):
            enter(scheduler, make_call(ident, program=ident, lengths=(300,), arrived=ident))
        served, now = [1], 0
        for turn in range(12):
            begun, text = now, unit.program != 4
            if not text:
                now += MS
            elif turn in {2, 8}:
                now += 6 * MS
                enter(scheduler, make_call(10 + turn, program=4, arrived=now))
            else:
                step = scheduler.step(begun + 6 * MS)
                assert (step.recall, step.wake_at) == ([], begun + 20 * MS)
                now += 20 * MS
            scheduler.step(now)
            assert unit.course.recalled == text
            (unit,) = end(scheduler, unit, now, max(1, (now - begun) // (2 * MS))).start
            served.append(unit.program)
        assert served == [1, 2, 3, 4, 1, 2, 3, 1, 2, 4, 3, 1, 2]

    def test_a_text_with_a_deadline_waits_for_a_short_turn(self) -> None:
        """Its call was admitted for 5 ms and its own 2: at 20 ms it would be late."""
        for deadline, turn in ((12 * MS, 5 * MS), (None, 20 * MS)):
            scheduler = serving(writer(1), writer(2))
            (unit,) = enter(scheduler, make_call(1, lengths=(300,))).start
            assert deadline is None or scheduler.admit(2, 1, Klass.REALTIME, deadline, MS, 0) is None
            step = enter(scheduler, make_call(2, program=2, lengths=(1,), arrived=MS, deadline=deadline))
            assert (step.recall, step.wake_at) == ([], turn)
            assert scheduler.step(turn).recall == [unit]

    def test_the_turn_of_others_is_as_long_whatever_their_batches(self) -> None:
        """A model of single rows would have one of them for 5 ms of the text."""
        scheduler = serving(writer(1), make_program(2, batch_ns=(2 * MS,), policy="no_wait", max_batch=1))
        (unit,) = enter(scheduler, make_call(1, lengths=(300,))).start
        enter(scheduler, make_call(2, rows=8, program=2, arrived=MS))
        served, now = [], 0
        for _ in range(9):
            now += 6 * MS if unit.program == 1 else 2 * MS
            scheduler.step(now)
            (unit,) = end(scheduler, unit, now, 3 if unit.program == 1 else 1).start
            served.append(unit.program)
        assert served == [2, 2, 2, 1, 2, 2, 2, 1, 2]

    def test_a_better_row_without_room_ends_no_unit(self) -> None:
        scheduler = serving(make_program(stages=CELL, max_batch=4, max_alive=1))
        (unit,) = enter(scheduler, make_call(1, lengths=(300,), priority=1)).start
        assert not enter(scheduler, make_call(2, lengths=(1,), arrived=35)).recall
        assert [call.id for call in end(scheduler, unit, 3_000, 300, ended=(0,)).done] == [1]

    @pytest.mark.parametrize(("length", "most", "steps"), [(0, 0, 1), (0, 5, 5), (9, 5, 5), (3, 5, 3)])
    def test_how_many_steps_are_known(self, length: int, most: int, steps: int) -> None:
        stages = (Stage(Profile((10,)), repeats=True, most_steps=most),)
        scheduler = serving(make_program(stages=stages))
        assert enter(scheduler, make_call(1, lengths=(length,))).start[0].course.steps == steps


class TestJoining:
    """`adaptive` has rows join a running cell where that lowers the sum of latencies. The unit is of 7 steps of 10, and
    one more end and beginning costs 5. That the choice is right shows `policies/test_by_length.py`."""

    LINEAR, FLAT = (10, 20, 30, 40), (10, 10, 10, 10)

    def running(self, times: tuple[int, ...]) -> tuple[Scheduler, Unit]:
        scheduler = serving(make_program(stages=(Stage(Profile(times, handover_ns=5), repeats=True),), max_batch=4))
        (unit,) = enter(scheduler, make_call(1, lengths=(7,))).start
        assert unit.course.steps == 7
        return scheduler, unit

    @pytest.mark.parametrize(
        ("times", "made", "lengths", "recalled"),
        [
            (LINEAR, 3, (7,), False),  # they would share the time: 40 + 40 - 80 - 5 is no gain
            (LINEAR, 3, (1,), True),  # gains 40 + 10 - 20 - 5; delays the other by 5 + 10
            (LINEAR, 3, (1, 1), True),  # twice 40 + 20 - 30 - 5 against 5 + 20
            (FLAT, 5, (7,), True),  # 20 - 5 against 5
            (FLAT, 6, (7,), False),  # it ends soon
        ],
    )
    def test_only_where_it_is_worth_one_more_beginning(self, times, made, lengths, recalled) -> None:
        scheduler, unit = self.running(times)
        scheduler.progressed(unit.id, made, 35)
        assert enter(scheduler, make_call(2, lengths=lengths, arrived=35)).recall == [unit] * recalled

    def test_steps_that_were_made_count_for_one_unit(self) -> None:
        scheduler, unit = self.running(self.FLAT)
        scheduler.progressed(unit.id, 6, 57)
        scheduler.progressed(unit.id, 2, 58)  # of the unit that follows it, whose beginning nobody has heard of
        assert unit.course.progress == 6
        scheduler.progressed(unit.id, 9, 59)
        assert unit.course.progress == 6, "it has one before it until it ends"
        scheduler.progressed(99, 1, 59)


class TestContinuing:
    """A worker goes on with the other rows of a unit by itself when some end."""

    def continued(self, scheduler: Scheduler, unit: Unit, now: int, steps: int, *ended: int) -> tuple[Unit, Step]:
        outcome = Outcome(unit.id, compute_ns=now - unit.started, steps=steps, ended=ended, continues=True)
        scheduler.finished(outcome, now)
        return scheduler.units[unit.id], scheduler.step(now)

    def test_with_those_that_have_not_ended(self) -> None:
        scheduler = serving(make_program(stages=CELL, policy="late", max_batch=4))
        enter(scheduler, make_call(1, lengths=(2,)))
        enter(scheduler, make_call(2, lengths=(5,), arrived=1))
        enter(scheduler, make_call(3, lengths=(9,), arrived=2))
        (unit,) = end(scheduler, next(iter(scheduler.units.values())), 20, 2, ended=(0,)).start
        assert (unit.course.continue_without, unit.course.steps) == (True, 5)
        following, step = self.continued(scheduler, unit, 125, 5, 0)
        assert [call.id for call in step.done] == [2]
        assert (step.start, step.recall, step.end_at_next_row) == ([], [], [])
        assert (following.id, following.course.steps, following.started) == (unit.id, 4, 125)
        assert [row.call.id for row in following.rows] == [3]
        assert following.forecast.predicted == 4 * latency_of(scheduler, 1), "nothing is handed over"
        assert list(scheduler.units.values()) == [following]
        assert [call.id for call in end(scheduler, following, 170, 4, ended=(0,)).done] == [3]
        assert scheduler._ledger.alive == 0

    def test_steps_are_predicted_by_what_rows_have_read_and_written(self) -> None:
        profile = Profile((10, 20), by_length=((10, (10, 20)), (20, (20, 40))))
        stages = (Stage(profile, repeats=True, most_steps=12, own_steps=True),)
        scheduler = serving(make_program(stages=stages, policy="late", max_batch=4))
        (unit,) = enter(scheduler, make_call(1, lengths=(10, 10))).start
        assert (unit.forecast.length, unit.forecast.predicted) == (10, 12 * 20)
        following, _ = self.continued(scheduler, unit, 5 * 20, 5, 0)
        assert (following.forecast.length, following.forecast.predicted) == (15, 7 * 15)

    def test_not_where_others_wait_for_a_place(self) -> None:
        scheduler = serving(make_program(stages=CELL, max_batch=4))
        (unit,) = enter(scheduler, make_call(1, lengths=(7, 9))).start
        scheduler.progressed(unit.id, 6, 140)
        step = enter(scheduler, make_call(2, lengths=(7,), arrived=140))
        assert (step.recall, step.end_at_next_row) == ([], [unit]), "5 before its end: they join then"
        assert not enter(scheduler, make_call(3, lengths=(7,), arrived=141)).end_at_next_row, "once is enough"
        (following,) = end(scheduler, unit, 145, 7, ended=(0,)).start
        assert [row.call.id for row in following.rows] == [1, 2, 3]


def test_parts_of_a_batch_are_as_old_as_it_and_closed() -> None:
    """D7. That the table counts what its rows have been through is checked in every trace (`Book._check_batches`)."""
    table, call = BatchTable(), make_call(0, 4)
    for row in call.rows:
        row.call = call
    assert table.launch(call.rows, 0, 3, 7, None) is Operation.NEW
    for row in call.rows:
        row.stage += 1
    table.divide(call.rows, 2)
    parts = [
        (batch.size, batch.created, batch.bucket, batch.closed, batch.completed(0)) for batch in table.batches.values()
    ]
    assert parts == [(2, 7, 3, True, 2)] * 2
