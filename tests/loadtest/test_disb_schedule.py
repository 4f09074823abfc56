"""The clients of a workload on a virtual clock, against DISB's rules.

Invariants, whatever the answers: a task has at most one request at a time; nothing is launched before its instant; the
launched instant is the newest that had passed; of the instants before the end each is launched or dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from loadtest.disb.schedule import Launch, Played, Players
from loadtest.disb.workload import Load, Task, Workload

S = 1_000_000_000
MS = 1_000_000


def play(workload: Workload, service: Callable[[Launch, int], int], seed: int = 0, **options: object) -> list[Played]:
    """Answer each launch after `service(launch, number)` ns; a negative time is a failure after its absolute value."""
    players = Players(workload, seed, **options)  # type: ignore[arg-type]
    events: list[tuple[int, int, int, Launch]] = []  # (time, 0 for an answer and 1 for a launch, sequence, launch)
    out: set[int] = set()
    sequence = 0

    def plan(launches: list[Launch], now: int) -> None:
        nonlocal sequence
        for launch in launches:
            assert launch.at >= max(now, launch.due)
            sequence += 1
            heappush(events, (launch.at, 1, sequence, launch))

    plan(players.begin(), 0)
    while events:
        now, kind, number, launch = heappop(events)
        assert not players.over
        if kind:
            assert launch.task not in out, "two requests of one task"
            out.add(launch.task)
            players.launched(launch, now)
            heappush(events, (now + abs(service(launch, number)), 0, number, launch))
        else:
            out.discard(launch.task)
            plan(players.ended(launch.task, now, service(launch, number) >= 0), now)
    assert players.over
    return players.played


def tasks(*loads: Load, time_s: float = 1.0) -> Workload:
    return Workload("w", time_s, tuple(Task(f"t{number}", load, "m") for number, load in enumerate(loads)))


instants = st.lists(st.integers(0, 1500), max_size=40).map(lambda found: tuple(MS * one for one in sorted(found)))
loads = st.one_of(
    st.builds(lambda f: Load("periodic", float(f)), st.integers(1, 60)),
    st.builds(lambda f: Load("poisson", float(f)), st.integers(1, 60)),
    st.builds(lambda found: Load("trace", trace=found), instants),
)


@repeatable(60)
@given(st.lists(loads, min_size=1, max_size=3), st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers())
def test_the_newest_instant_is_launched_and_the_others_are_dropped(
    given_loads: list[Load], times: list[int], seed: int
) -> None:
    workload = tasks(*given_loads)
    at_once = play(workload, lambda launch, number: 0, abs(seed))
    found = play(workload, lambda launch, number: MS * times[number % len(times)], abs(seed))
    for one, free_client in zip(found, at_once, strict=True):
        wanted = [due for due in one.task.load.trace if due < S]
        if one.task.load.kind != "trace":  # a client that is always free launches all
            assert (free_client.launched, free_client.dropped) == (free_client.due, 0)
            wanted = free_client.due
        assert len(one.due) + one.dropped == len(wanted)
        assert set(one.due) <= set(wanted)
        for free, due, at in zip([0, *one.ended], one.due, one.launched, strict=False):
            assert at == max(due, free)
            assert not any(due < other < free for other in wanted), "a newer instant had passed"


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_launches(seed: int) -> None:
    workload = tasks(Load("poisson", 50.0), Load("poisson", 50.0))
    first, again = (play(workload, lambda launch, number: 3 * MS, seed) for _ in range(2))
    assert [one.launched for one in first] == [one.launched for one in again]
    assert first[0].launched != first[1].launched
    assert first[0].launched != play(workload, lambda launch, number: 3 * MS, seed + 7)[0].launched
