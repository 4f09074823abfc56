"""Ebird point by point: E1 to E5 and S1 to S8 of the paper's Algorithm 1, as far as they are the scheduler's.

Slots, events and copies (E1, E2, S6, S7) are the engine's. E5 in our words: `N` is the rows that wait, `MaxInf` the
device's `max_alive`, `CurInf` the rows alive, `Q` the idle workers.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from app.scheduler.policies.ebird import Ebird
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Outcome, Step, Unit

from ..driven import calls_of, feed, finish, scheduler_of
from ..world import make_call, make_device, make_program

CI = repeatable(200)
LARGEST = 32
WORKERS = (1, 1, 2, 4, 8, 16)


def test_s1_a_worker_at_work_is_not_idle() -> None:
    """No second unit behind the one that runs: the algorithm's queue holds idle workers and no others."""
    with pytest.raises(ValueError, match="policy: expected one unit a worker: serve --policy ebird"):
        scheduler_of(make_program(policy="ebird"), device=make_device(*WORKERS, push_depth=2))


def ebird(*workers: int, max_alive: int = 1 << 30) -> Scheduler:
    program = make_program(policy="ebird", max_batch=LARGEST)
    return scheduler_of(program, device=make_device(*(workers or WORKERS), max_alive=max_alive))


def arrive(scheduler: Scheduler, rows: int, *, first: int = 1, now: int = 0) -> Step:
    """Single-row calls, numbered in order of arrival."""
    return feed(scheduler, *(make_call(ident, arrived=now) for ident in range(first, first + rows)), now=now)


def sizes(step: Step) -> list[int]:
    return [unit.size for unit in step.start]


def occupy(scheduler: Scheduler, busy: set[int]) -> dict[int, Unit]:
    """Make exactly these workers busy: all are filled, then the others return. The units that run, by worker."""
    units = arrive(scheduler, sum(worker.capacity for worker in scheduler.device.workers), first=10_000).start
    for unit in units:
        if unit.worker not in busy:
            scheduler.finished(Outcome(unit.id), 1)
    return {unit.worker: unit for unit in units if unit.worker in busy}


def algorithm_1(ready: int, room: int, idle: list[int]) -> list[int]:
    """The paper's listing, scan and all: the sizes it starts, in order."""
    started, r = [], min(ready, room)
    worker = 0
    queue = sorted(idle, reverse=True)
    while r > 0 and worker < len(queue):
        if r >= queue[worker]:
            started.append(queue[worker])
            r -= queue[worker]
        worker += 1  # after a dispatch the successor is the next in line too: the worker has left the queue
    return started


def test_workers_of_the_paper_are_enough_for_every_number_of_rows() -> None:
    """E3: the list sums to the largest batch, and every number up to it is a sum of some of them."""
    assert Ebird.workers(LARGEST) == WORKERS
    sums = {sum(chosen) for n in range(1, 7) for chosen in combinations(WORKERS, n)}
    assert sums == set(range(1, LARGEST + 1))


def test_rows_fewer_than_every_idle_worker_wait_though_there_is_room() -> None:
    """S1: R = 3 and {8, 16} idle. Nothing is padded; the worker of 2 takes two when it returns, then a single one."""
    scheduler = ebird()
    units = occupy(scheduler, {0, 1, 2, 3})
    step = arrive(scheduler, 3, now=2)
    assert (step.start, step.wake_at) == ([], None)
    assert scheduler._ledger.alive == 1 + 1 + 2 + 4
    step = finish(scheduler, units[3], 3)  # a worker of 4 helps nobody
    assert step.start == []
    step = finish(scheduler, units[2], 4)
    assert [(unit.worker, calls_of(unit)) for unit in step.start] == [(2, [1, 2])]
    assert sum(scheduler.states[1].queue.waiting) == 1
    step = finish(scheduler, units[0], 5)
    assert [(unit.worker, calls_of(unit)) for unit in step.start] == [(0, [3])]


@CI
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), max_size=7) | st.just(list(WORKERS[1:])),
    st.integers(1, 40),
    st.one_of(st.just(1 << 30), st.integers(1, 40)),
)
def test_passes_start_what_the_listing_starts(others: list[int], ready: int, max_alive: int) -> None:
    scheduler = ebird(1, *others, max_alive=max_alive)
    step = arrive(scheduler, ready)
    assert sizes(step) == algorithm_1(ready, max_alive, [1, *others])
    assert scheduler._ledger.alive == sum(sizes(step)) <= max_alive
    assert [call for unit in step.start for call in calls_of(unit)] == list(range(1, sum(sizes(step)) + 1)), "in order"
    assert all(len(unit.rows) == unit.size for unit in step.start), "none is padded"


def test_ebird_shares_a_device_with_no_other_policy() -> None:
    scheduler = ebird()
    scheduler.add_program(make_program(2, policy="ebird"), 0)
    with pytest.raises(ValueError, match="policy: ebird shares a device with no other policy, here no_wait"):
        scheduler.add_program(make_program(3, policy="no_wait"), 0)
    others = scheduler_of(make_program(1, policy="window"), device=make_device(1, 8))
    with pytest.raises(ValueError, match="here window"):
        others.add_program(make_program(2, policy="ebird"), 0)


def test_ebird_cannot_do_without_a_worker_of_one_row() -> None:
    with pytest.raises(ValueError, match=r"workers: expected one of capacity 1 for the policy ebird, got \[2, 8\]"):
        scheduler_of(make_program(policy="ebird"), device=make_device(2, 8))
