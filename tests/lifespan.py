"""For tests without a server: an application that runs, and requests that have the state of its lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx


def with_state(app: Any, state: Mapping[str, Any]) -> Any:
    """`app`, every request of which has the lifespan's state, as a server gives it."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return call


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """A client of a whole application whose models have been loaded, and the state of its lifespan."""
    async with app.running() as state:
        await state["health"].loaded.wait()
        transport = httpx.ASGITransport(with_state(app, state))
        async with httpx.AsyncClient(transport=transport, base_url="http://one") as client:
            yield client, state
