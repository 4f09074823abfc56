"""Where the server stands in its life, and what the probes are told.

STARTING (models load) -> SERVING -> CLOSING (told to stop; goes on answering, each answer closes its connection).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.contract import Catalog


class Lifecycle:
    """Implements contract.Health. `stuck` says why the engine makes no progress, or None; set once it exists."""

    def __init__(self) -> None:
        self.stuck: Callable[[], str | None] = lambda: None
        self.abort: Callable[[str], None] = lambda why: None
        self.connections: Callable[[], int] = lambda: 0
        self.catalog: Catalog | None = None
        self.closing = False
        self.failed: str | None = None  # why the process must end with an error
        self.on_failure: Callable[[], None] = lambda: None
        self.loaded = asyncio.Event()  # every model has been tried once

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
        pending = self.catalog.pending()
        if pending:
            return "; ".join(f"model {e.name} version {e.version}: {e.state} {e.reason}".strip() for e in pending)
        return None

    def fail(self, why: str) -> None:
        """The engine is lost: liveness is red from now on and the process is to end."""
        self.failed = why
        self.on_failure()
