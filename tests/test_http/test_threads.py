"""Invariant: what best-effort requests do on threads leaves one to real time, which goes first on the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from fakes import MS, virtual, virtual_loop

from app.http.threads import HalfTimeLock, HelperThreads

REAL, BEST = False, True


class Work:
    """Functions that run until `go_on`; `begun` lists those that run or have run."""

    def __init__(self, threads: int) -> None:
        self.threads = HelperThreads(threads)
        self.begun: list[str] = []
        self._go_on: dict[str, threading.Event] = {}

    def start(self, name: str, best_effort: bool) -> asyncio.Task[None]:
        self._go_on[name] = threading.Event()
        return asyncio.create_task(self.threads.run(best_effort, self._run, name))

    def _run(self, name: str) -> None:
        self.begun.append(name)
        self._go_on[name].wait(10)

    async def end(self, name: str, task: asyncio.Task[None]) -> None:
        self._go_on[name].set()
        await task

    def stop(self) -> None:
        for event in self._go_on.values():
            event.set()


@pytest.fixture
def two() -> Iterator[Work]:
    work = Work(2)
    yield work
    work.stop()


async def test_best_effort_leaves_one_thread_to_real_time(two: Work) -> None:
    best = [two.start(f"best {number}", BEST) for number in range(3)]
    await two.end("real", two.start("real", REAL))
    assert two.begun == ["best 0", "real"]
    for number, task in enumerate(best):
        await two.end(f"best {number}", task)


async def test_real_time_may_take_all_threads_and_goes_first(two: Work) -> None:
    real = [two.start(f"real {number}", REAL) for number in range(2)]
    waiting = two.start("best", BEST)
    late = two.start("late", REAL)
    await two.end("real 0", real[0])
    await two.end("late", late)
    assert "best" not in two.begun
    await two.end("real 1", real[1])
    await two.end("best", waiting)


async def test_who_leaves_takes_no_thread_along(two: Work) -> None:
    """While it waits, while it runs, and just as it is given a thread."""
    first = two.start("first", REAL)
    await asyncio.sleep(0)
    (running,) = asyncio.all_tasks() - {first, asyncio.current_task()}
    second, waiting, given = (two.start(name, REAL) for name in ("second", "waiting", "given"))
    await asyncio.sleep(0)
    waiting.cancel()
    first.cancel()
    await asyncio.wait([waiting, first])
    running.add_done_callback(lambda _: given.cancel())  # behind the one that gives its thread away
    two._go_on["first"].set()
    await asyncio.wait([given])
    assert given.cancelled()
    await two.end("third", two.start("third", REAL))
    await two.end("second", second)
    assert two.begun == ["first", "second", "third"]


@virtual
async def test_what_runs_for_half_of_the_time_is_no_longer_held_than_let_go() -> None:
    lock, begun = HalfTimeLock(), list[int]()

    async def parse(milliseconds: int) -> None:
        async with lock:
            begun.append(virtual_loop().now // MS)
            await asyncio.sleep(milliseconds / 1000)

    began = virtual_loop().now // MS
    async with asyncio.TaskGroup() as tasks:
        for milliseconds in (3, 10, 1):
            tasks.create_task(parse(milliseconds))
    assert [at - began for at in begun] == [0, 6, 26]
