"""An engine that runs nothing: it records what it is told, and can be made to wait or to fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.contract import Model, ModelInfo


@dataclass(eq=False)
class FakeServed:
    model: Model
    serial: int
    untried: Exception | None

    @property
    def info(self) -> ModelInfo:
        return self.model.info


class FakeHost:
    """`log` has one entry per call; `hold` an event per name that `start` or `stop` waits for, as "start m 1".

    `untried` has versions that raise on every made-up row, as "m 1"."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.hold: dict[str, asyncio.Event] = {}
        self.fail: dict[str, Exception] = {}
        self.untried: set[str] = set()
        self.running: set[FakeServed] = set()
        self.reached = asyncio.Condition()
        self._serial = 0

    async def start(self, model: Model) -> FakeServed:
        await self._step("start", model.info)
        self._serial += 1
        entry = f"{model.info.name} {model.info.version}"
        served = FakeServed(model, self._serial, RuntimeError("no row fits") if entry in self.untried else None)
        self.running.add(served)
        return served

    async def stop(self, served: FakeServed) -> None:
        assert served in self.running, "stopped twice"
        await self._step("stop", served.info)
        self.running.discard(served)

    def holding(self, *entries: str) -> list[asyncio.Event]:
        """From now on these calls wait for their events."""
        self.log.clear()
        self.hold = {entry: asyncio.Event() for entry in entries}
        return list(self.hold.values())

    async def until(self, entry: str) -> None:
        """Wait until the log has the entry."""
        async with self.reached:
            await self.reached.wait_for(lambda: entry in self.log)

    async def _step(self, verb: str, info: ModelInfo) -> None:
        entry = f"{verb} {info.name} {info.version}"
        async with self.reached:
            self.log.append(entry)
            self.reached.notify_all()
        if entry in self.hold:
            await self.hold[entry].wait()
        if entry in self.fail:
            raise self.fail[entry]
