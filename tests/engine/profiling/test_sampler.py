"""Which batches are timed next. Invariant: each cell is visited once a pass until its median is known."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from app.engine.profiling.measuring import UnitTime
from app.engine.profiling.sampler import Cell, Sampler, at_lengths, cells, size_sets
from app.scheduler.estimates.profile import parse

MS = 1_000_000


# what to measure


@given(st.integers(1, 300))
def test_coarser_sets_keep_both_ends(max_batch: int):
    sets = size_sets(max_batch)
    assert sets[0] == list(range(1, max_batch + 1))
    assert [len(sizes) for sizes in sets] == sorted((len(sizes) for sizes in sets), reverse=True)
    assert all({1, max_batch} <= set(sizes) <= set(sets[0]) and sizes == sorted(set(sizes)) for sizes in sets)


# the sampler


def visited(sampler: Sampler, cell: Cell, *times: int) -> None:
    """Each visit took so long."""
    for ns in times:
        sampler.add(cell, UnitTime(ns))


def test_a_cell_whose_times_agree_is_left_alone():
    sampler, visits = Sampler([Cell(1, 1), Cell(1, 2)], least=5, most=40), Counter()
    noise = count()
    while (cell := sampler.next()) is not None:
        visits[cell] += 1
        visited(sampler, cell, MS if cell == Cell(1, 1) else MS + MS * (next(noise) * 37 % 101) // 100)
    assert visits == {Cell(1, 1): 5, Cell(1, 2): 40}


def test_profile_of_what_was_timed():
    sampler = Sampler(cells([1, 2, 4], [2]))
    for cell in sampler.visits:
        visited(sampler, cell, *[MS * cell[0] * cell[1]] * 5)
    profile = sampler.profile(model="m", note="kept")
    assert profile.batch_ns == (MS, 2 * MS, 3 * MS, 4 * MS)
    assert profile.concurrency_ns == {2: (2 * MS, 4 * MS, 6 * MS, 8 * MS)}
    assert (profile.model, profile.extra["note"]) == ("m", "kept")
    assert profile.extra["repeats"] == {"1": 5, "2": 5, "4": 5}
    assert profile.extra["spread"] == {"1": 0.0, "2": 0.0, "4": 0.0}


def test_a_spread_needs_four_times():
    sampler = Sampler(cells([1, 2]))
    visited(sampler, Cell(1, 1), 1, 2, 3)
    visited(sampler, Cell(1, 2), 1, 2, 3, 4)
    assert set(sampler.profile().extra["spread"]) == {"2"}


def test_profile_by_length_and_stage():
    """Beyond what was timed at a length, its curve goes on as that of the rows as they are."""
    sampler = Sampler([*cells([1, 2, 4]), *at_lengths([1, 2, 4], [8, 32])])
    for cell in sampler.visits:
        if cell.size < 4 or cell.length < 32:
            ns = MS * cell.size * (cell.length or 16)
            for _ in range(2):
                sampler.add(cell, UnitTime(ns, (ns // 4, ns - ns // 4)))
    profile = sampler.profile(length=16)
    assert profile.by_length == tuple((n, (n * MS, 2 * n * MS, 3 * n * MS, 4 * n * MS)) for n in (8, 16, 32))
    first, second = profile.stages
    assert first.by_length[2] == (32, (8 * MS, 16 * MS, 24 * MS, 32 * MS))
    assert second.batch_ns == (12 * MS, 24 * MS, 36 * MS, 48 * MS)
    assert parse(profile.to_dict()) == profile


def test_steps_of_a_recurrent_model():
    """Their times are a stage's that repeats, whatever the length; those of a decoder go by what it reads again."""
    sampler = Sampler([*cells([1, 2]), *at_lengths([1, 2], [8])])
    for cell in sampler.visits:
        sampler.add(cell, UnitTime(16 * MS, (MS,)))
    (step,) = sampler.profile(None, 16, cell=True).stages
    assert (step.cell, step.by_length, step.batch_ns) == (True, (), (MS, MS))
    (text,) = sampler.profile(None, 16, cell=True, written=50).stages
    assert [length for length, _ in text.by_length] == [8 + 50, 16 + 50]
