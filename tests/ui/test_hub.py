"""Nothing happens while nobody watches; each watcher ends once, and a slow one is told anew."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import orjson
import pytest
from fakes import VirtualLoop, virtual, virtual_loop
from test_http.catalog import FakeCatalog, served, spec

from app.contract import IndexEntry
from app.errors import NotReady, QueueFull
from app.lifecycle import Lifecycle
from app.observe.logs import LastErrors
from app.observe.metrics import ModelStats
from app.observe.snapshot import Gauges, Plan, Snapshot
from app.scheduler.types import Call, Formed, Klass, Outcome, Row, Unit
from app.ui.history import EVERY_US, Machine
from app.ui.hub import MOST_WATCHERS, Hub, Watcher
from app.ui.messages import FIELDS

S, MS = 1_000_000_000, 1_000_000
ECHO = served("echo", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))


class Source:
    """An engine that counts how often it is asked. `heard` is who watches."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock: Callable[[], int] = lambda: loop.now
        self.heard: Callable[[Unit, Outcome, int, int], None] | None = None
        self.asked = 0

    def snapshot(self) -> Snapshot:
        self.asked += 1
        return Snapshot(
            [Gauges(ModelStats("echo", "1"), 0, 1, 0.0, 0, plan=Plan(batch_ns=(MS,), origin="measured"))], [0.0]
        )

    def watch(self, heard: Callable[[Unit, Outcome, int, int], None] | None) -> None:
        self.heard = heard

    def batch(self, began: int = 0, rows: int = 2) -> None:
        """One has left."""
        call = Call(0, 0, [], Klass.REALTIME, 0, 0, None)
        unit = Unit(0, 1, 0, 0, [Row() for _ in range(rows)], 4, Formed.FULL, 0)
        unit.rows[0].call = call
        assert self.heard is not None
        self.heard(unit, Outcome(0, None, 2 * MS), began, began + 3 * MS)


class Rig:
    def __init__(self) -> None:
        self.loop = virtual_loop()
        self.source, self.health = Source(self.loop), Lifecycle()
        self.catalog = FakeCatalog({"echo": {"1": ECHO}}, [IndexEntry("echo", "1", "READY")])
        self.errors = LastErrors()
        machine = Machine(1.0, 64, 0)
        self.hub = Hub(
            self.source, self.catalog, self.health, {"version": "0"}, self.errors, lambda: machine, interval_s=0.25
        )


async def next_of(watcher: Watcher) -> tuple[str, Any]:
    message = await watcher.next()
    assert message is not None
    name, data, *_ = message.decode().split("\n")
    return name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))


async def names_of(watcher: Watcher, count: int) -> list[str]:
    return [(await next_of(watcher))[0] for _ in range(count)]


@virtual
async def test_nothing_is_asked_while_nobody_watches() -> None:
    rig = Rig()
    await rig.loop.passes(2 * S)
    assert (rig.source.asked, rig.source.heard) == (0, None)
    with rig.hub.watching() as watcher:
        assert await names_of(watcher, 4) == ["hello", "history", "models", "tick"]
        assert rig.source.heard is not None
    asked = rig.source.asked
    await rig.loop.passes(2 * S)
    assert (rig.source.asked, rig.source.heard, len(rig.hub._watchers)) == (asked, None, 0)


@virtual
async def test_a_page_begins_with_what_was_before_it_came() -> None:
    rig = Rig()
    for _ in range(25):
        rig.hub.record()
        await rig.loop.passes(S)
    assert rig.source.asked == 3
    rig.errors.add("echo", "bad_request", "early")
    with rig.hub.watching() as watcher:
        assert await names_of(watcher, 1) == ["hello"]
        name, told = await next_of(watcher)
        assert (name, told["at"]) == ("history", [0, EVERY_US, 2 * EVERY_US])
        assert [one["message"] for one in told["errors"]] == ["early"]
        await names_of(watcher, 2)
        rig.errors.add("echo", "bad_request", "late")
        _, tick = await next_of(watcher)
        assert [one["message"] for one in tick["errors"]] == ["late"]
        _, tick = await next_of(watcher)
        assert tick["errors"] == []


@virtual
async def test_batches_leave_with_their_times() -> None:
    rig = Rig()
    began = rig.loop.now
    with rig.hub.watching() as watcher:
        await names_of(watcher, 4)
        rig.source.batch(began + 10 * MS)
        _, told = await next_of(watcher)
        (batch,) = told["batches"]
        assert dict(zip(FIELDS, batch, strict=True)) == {
            "program": 0, "stage": 0, "steps": 1, "worker": 1, "rows": 2, "size": 4, "reason": "full",
            "operation": "new", "class": 0, "began": 10_000, "took": 3000, "compute": 2000, "error": None,
            "batches": 1,
        }  # fmt: skip
        assert told["not_ready"] == "the server is starting"
        _, told = await next_of(watcher)
        assert told["batches"] == []


@virtual
async def test_a_page_that_reads_nothing_holds_little_and_is_told_anew() -> None:
    rig = Rig()
    with rig.hub.watching() as watcher:
        await names_of(watcher, 4)
        await rig.loop.passes(5 * S)
        found = await names_of(watcher, 4)
        assert found[:2] == ["history", "models"]
        assert watcher._messages.qsize() <= 16


@virtual
async def test_the_stream_ends_when_the_server_drains() -> None:
    rig = Rig()
    with rig.hub.watching() as watcher:
        await names_of(watcher, 4)
        rig.health.closing = True
        assert await next_of(watcher) == ("bye", {"reason": "the server is shutting down"})
        assert await watcher.next() is None
        assert (len(rig.hub._watchers), rig.source.heard) == (0, None)
        with pytest.raises(NotReady), rig.hub.watching():
            pass


@virtual
async def test_no_more_than_so_many_watch() -> None:
    rig = Rig()
    with ExitStack() as stack:
        for _ in range(MOST_WATCHERS):
            stack.enter_context(rig.hub.watching())
        with pytest.raises(QueueFull, match="pages watch already"), rig.hub.watching():
            pass
        assert len(rig.hub._watchers) == MOST_WATCHERS
    with rig.hub.watching():
        assert len(rig.hub._watchers) == 1
