"""Invariant: a pair is known by ratios of times that lie next to one another, of each combination of sizes.

A unit counts only if it ran alone, or with the other beside it all along; a fault is named.
"""

from __future__ import annotations

from collections import Counter
from itertools import count, product

import pytest
import torch

from app.engine.cpu.device import CpuDevice
from app.engine.device import Completion, Ran
from app.engine.profiling.bench import Bench, Round
from app.engine.profiling.pairs import Visit, known, visit
from app.engine.profiling.sampler import Visits
from app.errors import ConfigError
from app.scheduler.types import Fault, Outcome

from ..rig import make_model

MS = 1_000_000


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


# on real threads


def test_a_model_that_fails_is_named_with_its_company():
    warm = [True]

    def call(x: torch.Tensor) -> torch.Tensor:
        if not warm:
            raise IndexError("no more")
        return x * 2

    given = make_model(name="a", max_batch=2), make_model(call, name="b", max_batch=2)
    with Bench(CpuDevice((2, 2), 1, 2), *given) as bench:
        warm.clear()
        with pytest.raises(ConfigError, match="model 'b': a batch of 2 rows beside 'a': IndexError: no more"):
            visit(bench, (1, 2), alone_first=False)
        warm.append(True)
        assert visit(bench, (1, 2), alone_first=True).alone_ns > 0  # and the bench goes on


# which sizes


def test_what_agrees_is_left_alone_and_what_does_not_is_bounded():
    sampler = Visits(product([1, 2], [1]), known, most=9)
    noise, seen = count(), Counter()
    while (sizes := sampler.next()) is not None:
        seen[sizes] += 1
        beside = 110 if sizes == (1, 1) else 110 + 10 * (next(noise) % 2)
        sampler.add(sizes, Visit(100, beside))
    assert seen == {(1, 1): 5, (2, 1): 9}
    assert sampler.complete
    assert sampler.done == 2
