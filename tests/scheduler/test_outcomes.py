"""A unit's end moves each of its rows once: on, out, back in halves, or out with its call."""

from __future__ import annotations

import pytest

from app.scheduler.rows import outcomes
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import Call, Fault, Formed, Klass, Outcome, Profile, Reason, Row, RowState, Stage, Unit

from .world import make_call, make_device, make_program


class Bench:
    """A program whose rows have all started, as one unit."""

    def __init__(self, *calls: Call, size: int = 0, **options: object) -> None:
        self.ledger = Ledger()
        self.state = self.ledger.states[1] = ProgramState(make_program(**options), None, make_device(8), 0)
        for call in calls:
            self.ledger.enter(call, self.state)
        self.rows = self.ledger.ready.at((1, 0, 0), Klass.REALTIME).take(100, 100)
        self.ledger.start(self.rows, self.state)
        self.unit = self.as_unit(self.rows, size)

    def as_unit(self, rows: list[Row], size: int = 0) -> Unit:
        return Unit(0, 0, 1, rows[0].stage, rows, size or len(rows), Formed.IDLE, 0, 10)

    def groups(self) -> list[list[tuple[int, int]]]:
        """What is to be re-run, group by group."""
        ready, found = self.ledger.ready.at((1, 0, 0), Klass.REALTIME), []
        while group := ready.take_retry(99, 99):
            found.append([(row.call.id, row.index) for row in group])
        return found

    def drops(self) -> list[tuple[int, Reason, int]]:
        return [(drop.call.id, drop.reason, drop.row) for drop in self.ledger.drops]


class TestAdvance:
    def test_a_call_is_done_with_its_last_row(self) -> None:
        bench = Bench(make_call(1, 2), make_call(2))
        outcomes.advance(bench.ledger, bench.as_unit(bench.rows[:1]), Outcome(0), bench.state)
        assert (bench.ledger.done, bench.ledger.alive) == ([], 2)
        outcomes.advance(bench.ledger, bench.as_unit(bench.rows[1:]), Outcome(0), bench.state)
        assert ([call.id for call in bench.ledger.done], bench.ledger.alive) == ([1, 2], 0)

    def test_rows_go_on_to_the_next_stage_and_keep_their_room(self) -> None:
        bench = Bench(make_call(1, 2), stages=(Stage(Profile()), Stage(Profile())))
        outcomes.advance(bench.ledger, bench.unit, Outcome(0), bench.state)
        assert (bench.ledger.alive, bench.state.waiting, bench.ledger.done) == (2, 2, [])
        assert bench.ledger.ready.at((1, 1, 0), Klass.REALTIME).count == 2

    def test_rows_of_a_cell_go_round_until_they_end(self) -> None:
        bench = Bench(make_call(1), make_call(2), stages=(Stage(Profile(), repeats=True),))
        outcomes.advance(bench.ledger, bench.unit, Outcome(0, ended=(1,)), bench.state)
        assert [call.id for call in bench.ledger.done] == [2]
        assert (bench.ledger.alive, bench.ledger.ready.at((1, 0, 0), Klass.REALTIME).count) == (1, 1)

    def test_rows_whose_call_has_left_end_unheard(self) -> None:
        bench = Bench(make_call(1), make_call(2))
        bench.ledger.leave(bench.rows[0].call)
        outcomes.advance(bench.ledger, bench.unit, Outcome(0), bench.state)
        assert [call.id for call in bench.ledger.done] == [2]
        assert {row.state for row in bench.rows} == {RowState.ENDED}


class TestFail:
    def test_halves_are_run_again_the_larger_first(self) -> None:
        bench = Bench(make_call(1, 2), make_call(2, 3))
        outcomes.fail(bench.ledger, bench.unit, Fault.MODEL, bench.state, split=True)
        assert bench.groups() == [[(1, 0), (1, 1), (2, 0)], [(2, 1), (2, 2)]]
        assert (bench.drops(), bench.ledger.alive) == ([], 0)

    def test_a_row_alone_fails_its_call_and_is_named(self) -> None:
        bench = Bench(make_call(1, 2))
        outcomes.fail(bench.ledger, bench.as_unit(bench.rows[1:]), Fault.MODEL, bench.state, split=True)
        assert bench.drops() == [(1, Reason.MODEL, 1)]

    @pytest.mark.parametrize("why", ["switch", "broken"])
    def test_units_fail_whole_without_the_switch_or_where_the_model_is_broken(self, why: str) -> None:
        bench = Bench(make_call(1), make_call(2))
        if why == "broken":
            bench.state.recent.extend([True] * 16)
        outcomes.fail(bench.ledger, bench.unit, Fault.MODEL, bench.state, split=why == "broken")
        assert bench.drops() == [(1, Reason.MODEL, -1), (2, Reason.MODEL, -1)]
        assert bench.groups() == []

    def test_out_of_memory_halves_and_caps_the_worker(self) -> None:
        bench = Bench(make_call(1, 2), size=4)
        outcomes.fail(bench.ledger, bench.unit, Fault.OOM, bench.state, split=False)
        assert bench.state.capacity == [[2]]
        assert bench.groups() == [[(1, 0)], [(1, 1)]]

    def test_out_of_memory_for_one_row_fails_its_call(self) -> None:
        bench = Bench(make_call(1))
        outcomes.fail(bench.ledger, bench.unit, Fault.OOM, bench.state, split=True)
        assert bench.drops() == [(1, Reason.OOM, 0)]

    def test_rows_whose_call_has_left_are_not_run_again(self) -> None:
        bench = Bench(make_call(1), make_call(2), make_call(3))
        bench.ledger.leave(bench.rows[1].call)
        outcomes.fail(bench.ledger, bench.unit, Fault.MODEL, bench.state, split=True)
        assert bench.groups() == [[(1, 0)], [(3, 0)]]


def test_with_the_device_every_call_leaves() -> None:
    bench = Bench(make_call(1))
    bench.ledger.enter(make_call(2, 2), bench.state)
    outcomes.lose(bench.ledger, bench.unit)
    assert bench.drops() == [(1, Reason.DEVICE, -1), (2, Reason.DEVICE, -1)]
    assert (bench.ledger.calls, bench.ledger.alive, bench.state.waiting) == ({}, 0, 0)
