"""The ready sets of a device: one for each key and class, those of no program gone with it."""

from __future__ import annotations

from app.scheduler.rows.ready import ReadyTable
from app.scheduler.types import Klass

from .test_ready import stand
from .world import make_call


def test_table_names_sets_where_rows_wait_and_drops_programs() -> None:
    table = ReadyTable()
    stand(table.at((1, 0, 0), Klass.REALTIME), make_call(1))
    stand(table.at((2, 1, 3), Klass.REALTIME), make_call(2, program=2))
    assert table.at((1, 0, 0), Klass.REALTIME) is table.at((1, 0, 0), Klass.REALTIME)
    table.at((3, 0, 0), Klass.REALTIME)
    assert [ready.key for ready in table.waiting()] == [(1, 0, 0), (2, 1, 3)]
    table.drop_program(1)
    assert [ready.key for ready in table.waiting()] == [(2, 1, 3)]


def test_classes_stand_apart_at_a_key() -> None:
    table = ReadyTable()
    sets = [table.at((1, 0, 0), klass) for klass in Klass]
    stand(sets[0], make_call(1, 2, arrived=8))
    stand(sets[1], make_call(2, 3, klass=Klass.BEST_EFFORT, arrived=5))
    assert [ready.klass for ready in table.waiting()] == list(Klass)
    assert [table.of_program(1, klass) for klass in Klass] == [[ready] for ready in sets]
    assert [table.waiting_before(1, klass, (Klass.BEST_EFFORT, 0)) for klass in Klass] == [2, 3]
    assert [table.oldest(1, klass) for klass in Klass] == [8, 5]
    assert table.waiting_by_stage(1, 1) == [5]
    assert table.oldest(2, Klass.REALTIME) is None
    table.drop_program(1)
    assert table.waiting() == []
