"""Which batches are timed next: each cell once, then always the one that is known worst."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from app.engine.profiling.cells import Cell, at_lengths, cells, size_sets
from app.engine.profiling.measuring import UnitTime
from app.engine.profiling.sampler import Sampler
from app.scheduler.estimates.profile import Profile, linear, parse

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


KNOWN = Profile((MS, 2 * MS, 3 * MS, 4 * MS), errors=(0.25,) * 4)


def test_a_cell_whose_times_agree_is_left_alone_and_the_worst_known_is_next():
    sampler, visits = Sampler(KNOWN, [Cell(1, 1), Cell(2, 2)], most=40), Counter()
    order = []
    noise = count()
    while (cell := sampler.next()) is not None:
        order.append(cell)
        visits[cell] += 1
        visited(sampler, cell, MS if cell == Cell(1, 1) else 2 * MS + MS * (next(noise) * 37 % 101) // 50)
    assert order[:2] == [Cell(1, 1), Cell(2, 2)]
    assert visits[Cell(1, 1)] < 10
    assert visits[Cell(2, 2)] == 40


def test_profile_of_what_was_timed():
    sampler = Sampler(KNOWN, cells([1, 2, 4], [2]))
    for cell in sampler.visits:
        visited(sampler, cell, *[MS * cell[0] * cell[1]] * 5)
    profile = sampler.profile(model="m", note="kept")
    assert profile.batch_ns == (MS, 2 * MS, 3 * MS, 4 * MS)
    assert profile.concurrency_ns == {2: (2 * MS, 4 * MS, 6 * MS, 8 * MS)}
    assert (profile.model, profile.extra["note"]) == ("m", "kept")
    assert profile.extra["repeats"] == {"1": 5, "2": 5, "4": 5}
    assert profile.errors[0] < 0.05 < profile.errors[2]


def test_one_slow_batch_of_several_moves_a_size_little():
    sampler = Sampler(KNOWN, cells([1, 2, 3, 4]))
    for cell in sampler.visits:
        visited(sampler, cell, *[KNOWN.batch_ns[cell.size - 1]] * 3)
    visited(sampler, Cell(1, 3), 30 * MS)
    assert sampler.profile().batch_ns[2] < 3.3 * MS


def test_profile_by_length_and_stage():
    """Beyond what was timed at a length, its curve goes on as that of the rows as they are."""
    sampler = Sampler(linear(0, 16, 4), [*cells([1, 2, 4]), *at_lengths([1, 2, 4], [8, 32])])
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
    sampler = Sampler(linear(16, 0, 2), [*cells([1, 2]), *at_lengths([1, 2], [8])])
    for cell in sampler.visits:
        sampler.add(cell, UnitTime(16 * MS, (MS,)))
    (step,) = sampler.profile(16, cell=True).stages
    assert (step.cell, step.by_length, step.batch_ns) == (True, (), (MS, MS))
    (text,) = sampler.profile(16, cell=True, written=50).stages
    assert [length for length, _ in text.by_length] == [8 + 50, 16 + 50]
