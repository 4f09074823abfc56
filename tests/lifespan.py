"""For tests without a server: the lifespan of an ASGI application, as the server's integrations run it."""

from __future__ import annotations

from app.integrations.lifespan import started, with_state

__all__ = ["started", "with_state"]
