"""Invariant: a pair is known by ratios of times that lie next to one another, of each combination of sizes.

A unit counts only if it ran alone, or with the other beside it all along; a fault is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runtimes import HostRuntime
from torch import nn

from app.engine.cpu.device import CpuDevice
from app.engine.device import Completion, Job, Ran, Report
from app.engine.profiling.bench import Round, Timed
from app.engine.profiling.pairs import PairBench, PairSampler, Visit, ends, ends_and_middle, measure_pair
from app.engine.streams.device import StreamDevice
from app.errors import ConfigError
from app.scheduler.types import Fault, Outcome, WorkerSpec

from ..rig import make_model

MS = 1_000_000


class Scripted(CpuDevice):
    """Two workers whose units take a millisecond for each row, and a tenth more while both are at work."""

    def __init__(self) -> None:
        super().__init__((8, 8), 1, 2)
        self.rows: Mapping[int, int] = {}  # of units, by worker at work
        self.ran: set[tuple[str, int]] = set()  # model, rows

    def start(self, report: Report, *others: object) -> None:
        def scripted(completion: Completion) -> None:
            ns = MS * self.rows[completion.worker] * (11 if len(self.rows) > 1 else 10) // 10
            completion.outcome = replace(completion.outcome, compute_ns=ns)
            report(completion)

        super().start(scripted)

    def push(self, worker: int, job: Job) -> None:
        self.ran.add((job.executor.model.info.name, job.size))
        super().push(worker, job)


class ScriptedBench(PairBench):
    """Tells its device which workers are at work."""

    device: Scripted

    def time(self, rows: Mapping[int, int]) -> dict[int, Timed]:
        self.device.rows = rows
        return super().time(rows)


def told(worker: int, number: int, ns: int = MS, fault: Fault | None = None) -> Completion:
    return Completion(Outcome(number, fault, ns), None if fault else Ran([], 0, ns, 0), "as told", worker)


# whose units count


def test_a_round_ends_when_each_has_a_unit_that_counts():
    visit = Round({0: 1, 1: 4})
    assert visit.continues(told(0, 0))  # it pays for waking up
    assert visit.continues(told(0, 1))
    assert visit.continues(told(1, 0))
    assert visit.continues(told(0, 2))
    assert not visit.continues(told(1, 1))
    assert not visit.over.is_set()
    assert not visit.continues(told(0, 3))  # it ended alone
    assert visit.over.is_set()
    assert {worker: len(timed) for worker, timed in visit.timed.items()} == {0: 2, 1: 1}


def test_a_long_first_unit_counts():
    visit = Round({0: 1})
    assert not visit.continues(told(0, 0, 10 * MS))
    assert visit.timed == {0: [Timed(10 * MS, ())]}


def test_units_are_counted_until_each_worker_has_enough():
    visit = Round({0: 1, 1: 1}, enough=2)
    counted = [(0, True), (0, True), (1, True), (0, True), (1, True), (1, False), (0, False)]
    numbers = {0: iter(range(9)), 1: iter(range(9))}
    assert [visit.continues(told(worker, next(numbers[worker]))) for worker, _ in counted] == [on for _, on in counted]
    assert {worker: len(timed) for worker, timed in visit.timed.items()} == {0: 2, 1: 2}


def test_short_units_go_on_until_the_time_is_up():
    visit = Round({0: 1}, until=float("inf"))
    assert all(visit.continues(told(0, number)) for number in range(100))
    assert len(visit.timed[0]) == 99


def test_a_fault_ends_the_round():
    visit = Round({0: 1, 1: 1}, until=float("inf"))
    assert not visit.continues(told(1, 0, fault=Fault.MODEL))
    assert not visit.continues(told(0, 0))
    assert visit.over.is_set()
    assert visit.failed is not None
    assert visit.failed.worker == 1


# on real threads


def test_ratios_and_what_the_other_keeps():
    device, sampler, heard = Scripted(), PairSampler([1, 4], [8]), []
    models = make_model(lambda x: x * 2, name="a"), make_model(lambda x: x + 1, name="b")
    with ScriptedBench(device, models, (4, 8), least_s=0.0) as bench:
        bench.warm()
        measure_pair(bench, sampler, 1000.0, heard.append)
        assert [model.info.name for model in bench.placed] == ["a", "b"]
        assert bench.lengths == ({}, {})
    assert [(time.rows, time.alone_ns, time.beside_ns) for time in sampler.times()] == [
        (1, MS, 1_100_000), (4, 4 * MS, 4_400_000),
    ]  # fmt: skip
    assert [(time.slower, time.spread, time.speed, time.visits) for time in sampler.times()] == [
        (0.1, 0, 0.9091, 5)
    ] * 2
    assert heard[-1] == 2
    assert device.ran == {("a", 1), ("a", 4), ("b", 8)}


def test_every_combination_is_timed_however_small_the_budget():
    sampler = PairSampler([1, 2], [1, 2])
    model = make_model(lambda x: x * 2)
    with PairBench(CpuDevice((2, 2), 1, 2), (model, model), (2, 2), least_s=0.0) as bench:
        bench.warm()
        measure_pair(bench, sampler, 0.0)
        assert bench.placed[0] is bench.placed[1]  # one placed model on two workers, as it serves
    assert [len(visits) for visits in sampler.visits.values()] == [1] * 4
    assert all(time.alone_ns > 0 and time.beside_ns > 0 and time.speed > 0 for time in sampler.times())


def test_stages_of_the_first_model():
    staged = make_model(name="a", stages=(lambda x: x * 2, lambda x: x + 1))
    with PairBench(CpuDevice((2, 2), 1, 2), (staged, make_model()), (2, 2), least_s=0.0) as bench:
        bench.warm()
        visit = bench.visit((2, 1), [0, 1, 2])
    assert len(visit.alone_by_stage) == len(visit.beside_by_stage) == 2
    assert sum(visit.alone_by_stage) <= visit.alone_ns * 2


def test_a_model_that_fails_is_named_with_its_company():
    warm = [True]

    def call(x: torch.Tensor) -> torch.Tensor:
        if not warm:
            raise IndexError("no more")
        return x * 2

    with PairBench(CpuDevice((2, 2), 1, 2), (make_model(name="a"), make_model(call, name="b")), (2, 2)) as bench:
        bench.warm()
        warm.clear()
        with pytest.raises(ConfigError, match="model 'b': a batch of 2 rows beside 'a': IndexError: no more"):
            bench.visit((1, 2), [1, 0, 2])
        with pytest.raises(ConfigError, match="model 'b': a batch of 1 rows: IndexError: no more"):
            bench.visit((1, 1), [2, 1, 0])
        warm.append(True)
        assert bench.visit((1, 2), [0, 1, 2]).alone_ns > 0  # and the bench goes on


def test_a_device_of_streams_is_measured_as_any_other():
    with HostRuntime() as runtime:
        device = StreamDevice(runtime, (WorkerSpec(4), WorkerSpec(4)))
        with PairBench(
            device, (make_model(nn.Identity(), name="a"), make_model(nn.Identity(), name="b")), (4, 4), least_s=0.0
        ) as bench:
            bench.warm()
            visit = bench.visit((4, 2), [2, 1, 0])
    assert min(visit[:4]) > 0


def test_a_model_that_cannot_be_placed_leaves_no_worker_behind(monkeypatch: pytest.MonkeyPatch):
    device = CpuDevice((2, 2), 1, 2)

    def refuse(model: object, slots: int) -> None:
        raise ConfigError("no room")

    monkeypatch.setattr(device, "open", refuse)
    with pytest.raises(ConfigError, match="no room"), PairBench(device, (make_model(), make_model()), (2, 2)):
        pass
    assert device.dead() is not None


# which sizes


def visited(sampler: PairSampler, visit: Visit) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    while (sizes := sampler.next()) is not None:
        found[sizes] += 1
        sampler.add(sizes, visit)
    return found


@given(st.integers(1, 300))
def test_sizes_hold_both_ends(max_batch: int):
    assert ends(max_batch) == sorted({1, max_batch})
    assert set(ends(max_batch)) <= set(ends_and_middle(max_batch)) <= set(range(1, max_batch + 1))
    assert len(ends_and_middle(max_batch)) == min(3, max_batch)


def test_the_middle_is_that_of_the_octaves():
    assert [ends_and_middle(most) for most in (8, 16, 32, 64)] == [[1, 4, 8], [1, 4, 16], [1, 8, 32], [1, 8, 64]]


def test_each_pass_visits_every_combination_once():
    sampler = PairSampler([1, 4, 8], [1, 16])
    passes = [[sampler.next() for _ in range(6)] for _ in range(3)]
    assert all(sorted(one) == sorted(product([1, 4, 8], [1, 16])) for one in passes)  # type: ignore[type-var]
    assert not sampler.complete
    assert {tuple(sampler.order()) for _ in range(50)} == {
        (0, 1, 2),
        (0, 2, 1),
        (1, 0, 2),
        (1, 2, 0),
        (2, 0, 1),
        (2, 1, 0),
    }


def test_what_agrees_is_left_alone_and_what_does_not_is_bounded():
    sampler = PairSampler([1, 2], [1], most=9)
    noise, visits = count(), Counter()
    while (sizes := sampler.next()) is not None:
        visits[sizes] += 1
        beside = 110 if sizes == (1, 1) else 110 + 10 * (next(noise) % 2)
        sampler.add(sizes, Visit(100, beside, 50, 100))
    assert visits == {(1, 1): 5, (2, 1): 9}
    assert sampler.complete
    assert sampler.done == 2


def test_a_machine_that_drifts_bends_nothing():
    """It becomes ten times as slow from visit to visit; the ratio stays."""
    sampler = PairSampler([4], [8])
    for power in range(5):
        slow = 10**power
        sampler.add((4, 8), Visit(100 * slow, 103 * slow, 200 * slow, 250 * slow))
    (time,) = sampler.times()
    assert (time.rows, time.beside_rows, time.slower, time.speed, time.visits) == (4, 8, 0.03, 0.8, 5)
    assert (time.alone_ns, time.beside_ns, time.spread, time.stages) == (10_000, 10_300, 0.0, ())


def test_stages_each_by_itself():
    sampler = PairSampler([1], [1], least=2)
    assert visited(sampler, Visit(100, 110, 9, 9, (60, 40), (63, 47))) == {(1, 1): 2}
    assert sampler.times()[0].stages == (0.05, 0.175)
    single = PairSampler([1], [1], least=1)
    visited(single, Visit(100, 110, 9, 9, (100,), (110,)))
    assert single.times()[0].stages == ()


def test_what_was_not_timed_is_left_out():
    sampler = PairSampler([1, 2], [1])
    assert sampler.times() == ()
    sampler.add((2, 1), Visit(MS, MS, MS, MS))
    assert [(time.rows, time.slower) for time in sampler.times()] == [(2, pytest.approx(0))]
