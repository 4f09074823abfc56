"""Rows read and write the same whether they have a place in the slabs or memory of their own."""

from __future__ import annotations

import pytest
import torch

from app.engine.cpu.cell_rows import CellRows
from app.engine.executor import Steps
from app.engine.step_slabs import FirstStep
from app.models.recurrent.cells import CellStep

STATE = (torch.zeros(4, 2),)
X = torch.arange(4 * 6 * 2, dtype=torch.float32).view(4, 6, 2)


def first_step(x: torch.Tensor, every: dict[int, torch.Tensor], longest: int) -> FirstStep:
    return FirstStep(x, CellStep((), STATE, None), every, longest, Steps(longest, False))


def begun(places: int, steps: int = 6) -> CellRows:
    """Rows of 6, 5, 4 and 3 steps in slots 10 to 13."""
    rows = CellRows(places, first_step(X[:, 0], {1: X[:, 0]}, steps))
    rows.begin([10, 11, 12, 13], X, STATE, [6, 5, 4, 3])
    return rows


SLABS = pytest.mark.parametrize(
    ("places", "steps"), [(4, 6), (2, 6), (0, 6), (4, 4)], ids=["all", "two", "none", "short"]
)


def test_the_state_of_rows_is_a_copy_when_they_begin_and_when_it_is_asked_for() -> None:
    """A cell may write into what it gets, and begin rows in the same memory each time."""
    kept, memory = begun(4), torch.ones(1, 2)
    kept.begin([20], X[:1], (memory,), [6])
    for _ in range(2):
        (state,) = kept.state(kept.of([20]))
        assert state.tolist() == [[1, 1]]
        state.zero_()
        memory.zero_()


@pytest.mark.parametrize("at_once", [1, 2])
@SLABS
def test_each_row_reads_its_own_steps(places: int, steps: int, at_once: int) -> None:
    kept = begun(places, steps)
    rows = kept.of([12, 10])
    rows[0].done = 2
    at = kept.steps_at(rows)
    for made in range(0, 2, at_once):
        got = kept.read(rows, at, made, at_once)
        steps_of = [X[2, 2 + made :][:at_once], X[0, made:][:at_once]]
        assert torch.equal(got, torch.stack(steps_of, 1))
        if at is not None:
            at += at_once


@pytest.mark.parametrize("at_once", [1, 3])
@SLABS
def test_what_is_written_is_found_and_nothing_else(places: int, steps: int, at_once: int) -> None:
    """Of rows of which all have places in the slabs, some, or none; also where a row is longer than a slab."""
    kept = begun(places, steps)
    rows = kept.of([10, 13])
    for number in range(0, 3, at_once):  # another row's values lie in the slab already
        at = kept.steps_at(rows)
        kept.write(rows, None if at is None else at + number, number, 1, torch.full((at_once, 2, 2), 9.0))
    kept.write(rows, kept.steps_at(rows), 0, 1, X[None, :2, 0])
    got = kept.written(rows, 1, [3, 1])
    assert torch.equal(got[0], torch.stack([X[0, 0], torch.full((2,), 9.0), torch.full((2,), 9.0)]))
    assert torch.equal(got[1], torch.stack([X[1, 0], torch.zeros(2), torch.zeros(2)]))


def test_a_slab_is_no_larger_than_its_bound() -> None:
    rows = CellRows(1 << 20, first_step(torch.zeros(1, 1 << 10), {}, 1 << 12))
    rows.begin([0], torch.zeros(1, 3, 1 << 10), (torch.zeros(1, 1),), [3])
    assert rows.of([0])[0].slabs is rows._slabs
    assert rows._slabs.x.nbytes <= 1 << 30


@pytest.mark.parametrize(
    ("x", "steps"), [(torch.zeros(3, 6, 5), [3, 3, 3]), (X[:3], [3, 1 << 60, 3])], ids=["too wide", "too long"]
)
def test_rows_that_cannot_begin_take_no_place(x: torch.Tensor, steps: list[int]) -> None:
    """Wider than the steps that the slab was made for, or one too long for memory."""
    kept = begun(4)
    kept.release([10, 11, 12, 13])
    with pytest.raises(RuntimeError):
        kept.begin([20, 21, 22], x, (torch.zeros(3, 2),), steps)
    assert (len(kept), len(kept._free)) == (0, 4)


def test_a_place_that_another_worker_has_just_taken_is_not_missed() -> None:
    class Raced(list[int]):
        def __bool__(self) -> bool:
            return True

    kept = begun(4)
    kept._free = Raced()
    kept.begin([20], X[:1], STATE, [6])
    assert kept.of([20])[0].slabs is not kept._slabs
