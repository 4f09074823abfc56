"""Invariant: a pair is known by ratios of times that lie next to one another, of each combination of sizes.

A unit counts only if it ran alone, or with the other beside it all along; a fault is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.engine.cpu.device import CpuDevice
from app.engine.device import Completion, Job, Ran, Report
from app.engine.profiling.bench import Bench, Round
from app.engine.profiling.measuring import Timed
from app.engine.profiling.pairs import PairSampler, Visit, ends, ends_and_middle, measure_pair, visit
from app.errors import ConfigError
from app.scheduler.types import Fault, Outcome

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


class ScriptedBench(Bench):
    """Tells its device which workers are at work."""

    device: Scripted

    def time(self, rows: Mapping[int, int], length: int = 0) -> dict[int, Timed]:
        self.device.rows = rows
        return super().time(rows, length)


def told(worker: int, number: int, ns: int = MS, fault: Fault | None = None) -> Completion:
    return Completion(Outcome(number, fault, ns), None if fault else Ran([], 0, ns, 0), "as told", worker)


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


def test_a_long_first_unit_counts():
    one = Round({0: 1})
    assert not one.continues(told(0, 0, 10 * MS))
    assert one.timed == {0: [Timed(10 * MS, ())]}


def test_short_units_go_on_until_the_time_is_up():
    one = Round({0: 1}, until=float("inf"))
    assert all(one.continues(told(0, number)) for number in range(100))
    assert len(one.timed[0]) == 99


def test_a_fault_ends_the_round():
    one = Round({0: 1, 1: 1}, until=float("inf"))
    assert not one.continues(told(1, 0, fault=Fault.MODEL))
    assert not one.continues(told(0, 0))
    assert one.over.is_set()
    assert one.failed is not None
    assert one.failed.worker == 1


# on real threads


def test_ratios():
    device, sampler, heard = Scripted(), PairSampler([1, 4], [8]), []
    models = make_model(lambda x: x * 2, name="a", max_batch=4), make_model(lambda x: x + 1, name="b", max_batch=8)
    with ScriptedBench(device, (models[0], None), (models[1], None)) as bench:
        measure_pair(bench, sampler, 1000.0, heard.append)
        assert [(model.name, model.lengths) for model in bench.models] == [("a", {}), ("b", {})]
    assert [(time.rows, time.alone_ms, time.beside_ms) for time in sampler.times()] == [
        (1, 1, 1.1), (4, 4, 4.4),
    ]  # fmt: skip
    assert [time.slower for time in sampler.times()] == [0.1] * 2
    assert [len(visits) for visits in sampler.visits.values()] == [5] * 2
    assert heard[-1] == 2
    assert device.ran == {("a", 1), ("a", 4), ("b", 8)}


def test_every_combination_is_timed_however_small_the_budget():
    sampler = PairSampler([1, 2], [1, 2])
    model = make_model(lambda x: x * 2, max_batch=2)
    with Bench(CpuDevice((2, 2), 1, 2), (model, None), (model, None)) as bench:
        measure_pair(bench, sampler, 0.0)
        assert bench.models[0] is bench.models[1]  # one placed model on two workers, as it serves
    assert [len(visits) for visits in sampler.visits.values()] == [1] * 4
    assert all(time.alone_ms > 0 and time.beside_ms > 0 for time in sampler.times())


def test_a_model_that_fails_is_named_with_its_company():
    warm = [True]

    def call(x: torch.Tensor) -> torch.Tensor:
        if not warm:
            raise IndexError("no more")
        return x * 2

    given = (make_model(name="a", max_batch=2), None), (make_model(call, name="b", max_batch=2), None)
    with Bench(CpuDevice((2, 2), 1, 2), *given) as bench:
        warm.clear()
        with pytest.raises(ConfigError, match="model 'b': a batch of 2 rows beside 'a': IndexError: no more"):
            visit(bench, (1, 2), alone_first=False)
        warm.append(True)
        assert visit(bench, (1, 2), alone_first=True).alone_ns > 0  # and the bench goes on


# which sizes


@given(st.integers(1, 300))
def test_sizes_hold_both_ends(max_batch: int):
    assert ends(max_batch) == sorted({1, max_batch})
    assert set(ends(max_batch)) <= set(ends_and_middle(max_batch)) <= set(range(1, max_batch + 1))
    assert len(ends_and_middle(max_batch)) == min(3, max_batch)


def test_what_agrees_is_left_alone_and_what_does_not_is_bounded():
    sampler = PairSampler([1, 2], [1], most=9)
    noise, visits = count(), Counter()
    while (sizes := sampler.next()) is not None:
        visits[sizes] += 1
        beside = 110 if sizes == (1, 1) else 110 + 10 * (next(noise) % 2)
        sampler.add(sizes, Visit(100, beside))
    assert visits == {(1, 1): 5, (2, 1): 9}
    assert sampler.complete
    assert sampler.done == 2


def test_what_was_not_timed_is_left_out():
    sampler = PairSampler([1, 2], [1])
    assert sampler.times() == ()
    sampler.add((2, 1), Visit(MS, MS))
    assert [(time.rows, time.slower) for time in sampler.times()] == [(2, pytest.approx(0))]
