"""Rows read and write the same whether they have a place in the slabs or memory of their own."""

from __future__ import annotations

import pytest
import torch

from app.engine.cpu.cell_rows import CellRows

STATE = (torch.zeros(4, 2),)
X = torch.arange(4 * 6 * 2, dtype=torch.float32).view(4, 6, 2)


def begun(places: int, steps: int = 6) -> CellRows:
    """Rows of 6, 5, 4 and 3 steps in slots 10 to 13."""
    rows = CellRows()
    rows.reserve(places, steps, X[:, 0], {1: X[:, 0]})
    rows.begin([10, 11, 12, 13], X, STATE, [6, 5, 4, 3])
    return rows


def test_a_slab_is_no_larger_than_its_bound() -> None:
    rows = CellRows()
    rows.reserve(1 << 20, 1 << 12, torch.zeros(1, 1 << 10), {})
    rows.begin([0], torch.zeros(1, 3, 1 << 10), (torch.zeros(1, 1),), [3])
    assert rows.rows_of([0])[0].place >= 0
    assert rows._x is not None
    assert rows._x.values.nbytes <= 1 << 30


def test_rows_that_cannot_begin_take_no_place() -> None:
    kept = begun(4)
    kept.let_go([10, 11, 12, 13])
    with pytest.raises(RuntimeError):  # wider than the steps that the slab was made for
        kept.begin([20, 21, 22], torch.zeros(3, 6, 5), (torch.zeros(3, 2),), [3, 3, 3])
    assert (kept.rows, len(kept._free)) == (0, 4)


def test_a_place_that_another_worker_has_just_taken_is_not_missed() -> None:
    class Raced(list[int]):
        def __bool__(self) -> bool:
            return True

    kept = begun(4)
    kept._free = Raced()
    kept.begin([20], X[:1], STATE, [6])
    assert kept.rows_of([20])[0].place == -1
