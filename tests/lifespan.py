"""For tests without a server: requests of an application that runs have the state of its lifespan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_state(app: Any, state: Mapping[str, Any]) -> Any:
    """`app`, every request of which has the lifespan's state, as a server gives it."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return call
