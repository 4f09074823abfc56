"""Both clients, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_server import Driven, FakeServer, Handler


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Driven]]:
    """Make a client of a server in memory."""
    with asyncio.Runner() as runner:

        def make(server: Handler, **options: Any) -> Driven:
            return Driven(request.param, server, runner, **options)

        yield make
