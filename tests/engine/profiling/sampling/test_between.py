"""Times of sizes that were looked at lie between the curve of the others and what was seen."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from app.engine.profiling.sampling.between import LOOKS, drawn, looks_for, noise_of
from app.engine.profiling.sampling.sampler import Sampler, cells, coarser

FIRM = {1: 1000, 8: 8000}


def test_on_a_quiet_machine_they_are_what_was_seen() -> None:
    seen = {2: [2100] * LOOKS, 5: [4500, 4700, 9900]}
    assert drawn(seen, FIRM, 0.0) == {2: 2100, 5: 4700}
    assert drawn({}, FIRM, 0.0) == {}


def test_where_looks_say_no_more_than_the_noise_they_are_on_the_line() -> None:
    seen = {size: [int(size * 1000 * off)] * LOOKS for size, off in ((2, 1.02), (4, 0.98), (5, 1.02), (6, 0.98))}
    assert drawn(seen, FIRM, 0.05) == {2: 2000, 4: 4000, 5: 5000, 6: 6000}


def test_more_looks_where_times_vary_more() -> None:
    assert [looks_for(noise) for noise in (0.0, 0.03, 0.06, 0.3)] == [3, 3, 6, 8]


def test_noise_is_that_of_what_was_timed_often() -> None:
    assert noise_of([[100, 100], [90, 97, 100, 103, 110, 100]]) == pytest.approx(0.03 / 1.349, rel=0.1)
    assert noise_of([[100, 900]]) == 0


@pytest.mark.parametrize(("noise", "calls", "error"), [(0.03, 0.65, 0.02), (0.1, 0.55, 0.04)])
def test_fewer_calls_know_a_curve_that_jumps(noise: float, calls: float, error: float) -> None:
    """Three rows take longer than four, and every other size is off the line by a tenth."""
    curve = {size: 1e6 * (1 + 0.1 * size + (size == 3)) * (1 + 0.1 * (size % 2)) for size in range(1, 33)}
    every, firm = cells(curve), coarser(32)[1]
    looked_at = [cell for cell in every if cell.size not in firm]

    def known(sampler: Sampler) -> tuple[int, float]:
        draw = random.Random(4)
        while (cell := sampler.next()) is not None:
            sampler.add(cell, [round(curve[cell.size] * draw.lognormvariate(0, noise))])
        times = sampler.profile().batch_ns
        off = mean(abs(time / exact - 1) for time, exact in zip(times, curve.values(), strict=True))
        return sum(map(len, sampler.times.values())), off

    all_calls, _ = known(Sampler(every, most=30))
    few_calls, off = known(Sampler(every, most=20, tolerance=0.04, between=looked_at))
    assert few_calls <= calls * all_calls
    assert off <= error


def test_a_size_that_seems_the_best_is_timed_like_the_others() -> None:
    """Or batches would be cut to the size that was luckiest when it was looked at."""
    every = cells(range(1, 9))
    sampler = Sampler(every, between=[cell for cell in every if cell.size in (5, 7)], least=8)
    while (cell := sampler.next()) is not None:
        lucky = cell.size == 7 and len(sampler.times[cell]) < 3
        sampler.add(cell, [cell.size * (960 if lucky else 1000)])
    visits = {cell.size: len(times) for cell, times in sampler.times.items()}
    assert visits == {**dict.fromkeys(range(1, 9), 8), 5: 3}
    assert sampler.table(1)[7] == 7000


def test_what_time_did_not_allow_to_judge_is_on_the_line_too() -> None:
    every = cells(range(1, 5))
    sampler = Sampler(every, between=[cell for cell in every if cell.size == 3])
    for cell, time in zip(every, (1000, 2000, 3030, 4000), strict=True):
        sampler.add(cell, [time])
    assert sampler.profile().batch_ns == (1000, 2000, 3030, 4000)
    assert sampler.done == 1
