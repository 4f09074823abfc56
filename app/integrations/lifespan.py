"""Runs the lifespan of an ASGI application where no server does it, and gives its requests the state of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from app.http.body import ASGIApp, Receive, Scope, Send

State = dict[str, Any]


@asynccontextmanager
async def started(app: ASGIApp) -> AsyncIterator[State]:
    """From the application's startup to its shutdown; its state.

    Raises what the application raised. RuntimeError: it said that it cannot start, or stop.
    """
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    state: State = {}
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    running = asyncio.ensure_future(app(scope, inbox.get, outbox.put))
    # An answer that will never come must not be waited for.
    running.add_done_callback(lambda _: outbox.put_nowait({"type": "ended"}))

    async def run_phase(phase: str) -> None:
        await inbox.put({"type": f"lifespan.{phase}"})
        answer = await outbox.get()
        if answer["type"] != f"lifespan.{phase}.complete":
            await running  # raises what it raised
            raise RuntimeError(f"{phase}: {answer.get('message', 'the application ended')}")

    try:
        await run_phase("startup")
        try:
            yield state
        finally:
            await run_phase("shutdown")
            await running
    finally:
        running.cancel()


def with_state(app: ASGIApp, state: State) -> ASGIApp:
    """`app`, every request of which has the lifespan's state, as a server gives it."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return call
