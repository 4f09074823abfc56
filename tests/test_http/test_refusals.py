"""Refusals that wait while very many connections are open, on a clock of the test's."""

from __future__ import annotations

import asyncio

import pytest
from connections import Clock

from app.http.connection.refusals import FREE, RefusalQueue


def waits(count: int) -> list[float]:
    """How long each of so many waited that were refused at once."""
    clock, left = Clock(), []
    turns = RefusalQueue(lambda: FREE + count)
    for _ in range(count):
        turns.wait(clock, lambda: left.append(clock.now))  # type: ignore[arg-type]
    clock.pass_s(10)
    assert (len(left), clock.timers, left) == (count, [], sorted(left))
    return left


@pytest.mark.parametrize(("count", "last_s"), [(1, 0.004), (64, 0.032), (1500, 0.752)])
def test_a_refusal_waits_longer_the_more_there_are(count: int, last_s: float) -> None:
    """And they leave one after another: refused together, they do not come back together."""
    left = waits(count)
    assert left[-1] == pytest.approx(last_s)
    assert max(map(left.count, set(left))) == min(8, count)


def test_clients_that_always_come_back_wait_a_second_at_most() -> None:
    """However many there are: 30,000 of them, each refused again as soon as it is refused."""
    clock = Clock()
    turns = RefusalQueue(lambda: 30_000)
    longest = 0.0

    def refuse(since: float) -> None:
        nonlocal longest
        longest = max(longest, clock.now - since)
        turns.wait(clock, lambda since=clock.now: refuse(since))  # type: ignore[arg-type, misc]

    for _ in range(30_000):
        turns.wait(clock, lambda: refuse(0.0))  # type: ignore[arg-type]
    clock.pass_s(3)
    assert longest == pytest.approx(1.0, abs=0.01)


async def test_none_waits_while_few_connections_are_open() -> None:
    count = FREE
    turns = RefusalQueue(lambda: count)
    assert not turns.needed()
    await turns.turn()
    count = FREE + 1
    waiting = asyncio.create_task(turns.turn())
    await asyncio.sleep(0)
    assert not waiting.done()
    count = 0
    assert turns.needed()  # nobody overtakes those who wait
    await waiting
    assert not turns.needed()
