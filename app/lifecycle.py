"""The state of the server, and the answers to the probes.

STARTING (models load) -> SERVING -> CLOSING (told to stop; still answers, and each answer closes its connection).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from app.contract import Catalog, IndexEntry


class Lifecycle:
    """Shared by the server, the engine and the probes. Server and engine replace its functions when they exist.

    `stuck` returns why the engine makes no progress, or None. `abort` answers all requests with 503. `connections`
    counts open connections, `malformed` requests that were not valid HTTP, `lost_lines` those of the log and of models'
    output that could not be written. `certificate_expires` returns seconds since
    the epoch. `tick_callbacks` run at each tick of the rate monitor, about once a second: they check files for changes,
    or keep a sample. They raise nothing.
    """

    def __init__(self) -> None:
        self.stuck: Callable[[], str | None] = lambda: None
        self.abort: Callable[[str], None] = lambda why: None
        self.connections: Callable[[], int] = lambda: 0
        self.malformed: Callable[[], int] = lambda: 0
        self.lost_lines: Callable[[], int] = lambda: 0
        self.certificate_expires: Callable[[], float | None] = lambda: None
        self.tick_callbacks: list[Callable[[], None]] = []
        self.catalog: Catalog | None = None
        self.device = ""  # name of the device that models run on; set with the catalog
        self.closing = False
        self.failed: str | None = None  # if set, the process must end with an error, for this reason
        self.on_failure: Callable[[], None] = lambda: None
        self.loaded = asyncio.Event()  # set when every model has been tried once

    def live(self) -> str | None:
        return self.failed or self.stuck()

    def ready(self) -> str | None:
        if self.closing:
            return "the server is shutting down"
        dead = self.live()
        if dead is not None:
            return dead
        if self.catalog is None:
            return "the server is starting"
        return _why_not(self.models()) or None

    def models(self) -> Sequence[IndexEntry]:
        """The state of every model."""
        return () if self.catalog is None else self.catalog.index()

    def tick(self) -> None:
        for callback in self.tick_callbacks:
            callback()

    def fail(self, why: str) -> None:
        """The engine is lost: the liveness probe fails from now on, and the process must end."""
        self.failed = why
        self.on_failure()


def _why_not(index: Sequence[IndexEntry]) -> str:
    """The models that readiness waits for, as `a: loading; b: failed: REASON`; "" if every required model serves.

    A required model that is unavailable has failed to load: unloading makes a model not required. The version is named
    if a model has several.
    """
    versions = Counter(entry.name for entry in index)
    parts = []
    for entry in index:
        if not entry.awaited:
            continue
        name = entry.name if versions[entry.name] == 1 else f"{entry.name} version {entry.version}"
        state = "failed" if entry.state == "UNAVAILABLE" else entry.state.lower()
        parts.append(": ".join(part for part in (name, state, entry.reason) if part))
    return "; ".join(parts)
