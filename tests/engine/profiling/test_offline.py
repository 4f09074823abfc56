"""Measuring batches, alone and in pairs."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runtimes import HostRuntime
from torch import nn

from app.engine.cpu.device import CpuDevice
from app.engine.device import BatchResult, Completion
from app.engine.profiling.measuring import UnitTime
from app.engine.profiling.offline import OfflineBench, Round, measure
from app.engine.profiling.pairs import Visit, is_known, visit
from app.engine.profiling.sampler import Cell, Sampler, Visits, at_lengths, cells, size_sets
from app.engine.streams.device import StreamDevice
from app.errors import ConfigError
from app.models import Recurrent
from app.scheduler.estimates.profile import parse
from app.scheduler.types import Outcome, WorkerSpec

from ..rig import make_model, recurrent, tensor

# Invariant: each cell is visited once a pass until its median is known, and only undisturbed company is counted.


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
    assert sampler.done == 2


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


# on real threads


def bench(call=None, workers: int = 2, max_batch: int = 4, **options) -> OfflineBench:
    device = CpuDevice((max_batch,) * workers, 1, workers)
    return OfflineBench(device, make_model(call, max_batch=max_batch, **options))


def test_units_run_the_rows_of_the_slots_and_times_are_the_workers_own():
    seen: list[tuple[int, bool]] = []
    with bench(lambda x: seen.append((len(x), bool((x == 1).all()))) or x) as measuring:
        for rows in ({0: 2}, {0: 4, 1: 4}):
            seen.clear()
            timed = measuring.time(rows)
            assert set(seen) == {(rows[0], True)}
            assert len(seen) >= 2 * len(rows), "a first and another"
            assert {worker: one.ns > 0 for worker, one in timed.items()} == dict.fromkeys(rows, True)


@pytest.mark.parametrize("rows", [{0: 3}, {0: 3, 1: 3}, None], ids=["alone", "two at once", "hand-over"])
def test_a_model_that_fails_while_it_is_measured(rows: dict[int, int] | None):
    warm = [True]

    def call(x: torch.Tensor) -> torch.Tensor:
        if not warm:
            raise IndexError("no more")
        return x

    with bench(call) as measuring:
        warm.clear()
        with pytest.raises(ConfigError, match=r"model 'm': a batch of (1|3) rows.*: IndexError: no more"):
            measuring.time(rows) if rows else asyncio.run(measuring.handover(1.0))
        warm.append(True)
        assert measuring.time({0: 1, 1: 1})  # and the bench goes on


@pytest.mark.parametrize(("budget_s", "done", "least"), [(0.0, 8, 1), (1000.0, 8, 2)])
def test_every_cell_is_timed_however_small_the_budget_until_all_are_settled(budget_s: float, done: int, least: int):
    """On a CPU and on streams."""
    with HostRuntime() as runtime:
        for device in (CpuDevice((4, 4), 1, 2), StreamDevice(runtime, (WorkerSpec(4), WorkerSpec(4)))):
            sampler, progress = Sampler(cells(range(1, 5), [2]), least=1, most=least), []
            with OfflineBench(device, make_model(nn.Identity(), max_batch=4)) as measuring:
                assert measure(measuring, sampler, budget_s, progress.append) > 0
                assert asyncio.run(measuring.handover(0.0)) > 0
            assert sampler.complete
            assert len(progress) >= done
            assert sampler.profile().max_batch == 4
            assert sampler.done == done or budget_s == 0


def test_steps_of_a_recurrent_model():
    """Their times are a stage's that repeats, whatever the length."""

    class Sums:
        def step(self, x, state):
            return state[0] + x, (state[0] + x,)

    model = recurrent(Recurrent(Sums(), ((),)), [tensor("x", "FP32", ("n", 32))], [tensor("y", "FP32")])
    with OfflineBench(CpuDevice((4,), 1, 1), model) as measuring:
        sampler = Sampler([*cells([1, 2]), *at_lengths([1, 2], [8])], least=1, most=3)
        measure(measuring, sampler, 1000.0)
        assert measuring.models[0].executor.steps is not None
    (step,) = sampler.profile(None, 16, cell=True).stages
    assert (step.cell, step.by_length) == (True, ())
    (text,) = sampler.profile(None, 16, cell=True, written=50).stages
    assert [length for length, _ in text.by_length] == [8 + 50, 16 + 50], "those of a decoder by what it reads again"
    assert text.by_length[1][1] == step.batch_ns
    assert 0 < step.batch_ns[1] < sampler.table(1)[2]


# Invariant: a pair is known by ratios of times that lie next to one another, of each combination of sizes.
# A unit counts only if it ran alone, or with the other beside it all along; a fault is named.


def told(worker: int, number: int) -> Completion:
    return Completion(Outcome(number, None, MS), BatchResult([], 0, MS, 0), "", worker)


# whose units count


def test_a_round_ends_when_each_has_a_unit_that_counts():
    one = Round({0: 1, 1: 4})
    assert one.continues(told(0, 0))  # it pays for waking up
    assert one.continues(told(0, 1))
    assert one.continues(told(1, 0))
    assert one.continues(told(0, 2))
    assert not one.continues(told(1, 1))
    assert not one.over.is_set()
    assert not one.continues(told(0, 3))  # it ended alone
    assert one.over.is_set()
    assert {worker: len(timed) for worker, timed in one.timed.items()} == {0: 2, 1: 1}


# on real threads


def test_a_model_that_fails_is_named_with_its_company():
    warm = [True]

    def call(x: torch.Tensor) -> torch.Tensor:
        if not warm:
            raise IndexError("no more")
        return x * 2

    given = make_model(name="a", max_batch=2), make_model(call, name="b", max_batch=2)
    with OfflineBench(CpuDevice((2, 2), 1, 2), *given) as bench:
        warm.clear()
        with pytest.raises(ConfigError, match="model 'b': a batch of 2 rows beside 'a': IndexError: no more"):
            visit(bench, (1, 2), alone_first=False)
        warm.append(True)
        assert visit(bench, (1, 2), alone_first=True).alone_ns > 0  # and the bench goes on


# which sizes


def test_what_agrees_is_left_alone_and_what_does_not_is_bounded():
    sampler = Visits(product([1, 2], [1]), is_known, most=9)
    noise, seen = count(), Counter()
    while (sizes := sampler.next()) is not None:
        seen[sizes] += 1
        beside = 110 if sizes == (1, 1) else 110 + 10 * (next(noise) % 2)
        sampler.add(sizes, Visit(100, beside))
    assert seen == {(1, 1): 5, (2, 1): 9}
    assert sampler.complete
    assert sampler.done == 2
