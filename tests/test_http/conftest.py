"""A model, and what sends requests to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from app.contract import Batching, ModelInfo

from .catalog import served, spec
from .echo import Caller, Echo, MakeCaller


@pytest.fixture
def model() -> Echo:
    plain = served("echo", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))
    info = ModelInfo("echo", "1", "pytorch", plain.info.inputs, plain.info.outputs, Batching(max_queue=8))
    return Echo(info, plain.model)


@pytest.fixture(params=["asgi", "direct"])
def caller(request: pytest.FixtureRequest, model: Echo) -> Iterator[MakeCaller]:
    """Make a Caller, of `model` if of no other, for each of both ways. At the end nothing is held."""
    made: list[Caller] = []

    def make(of: Echo = model, **options: Any) -> Caller:
        made.append(Caller(of, request.param, **options))
        return made[-1]

    yield make
    for one in made:
        assert (one.model.open_leases, one.resources.bodies.held) == (0, 0)


@pytest.fixture
def call(caller: MakeCaller) -> Caller:
    """Of the model."""
    return caller()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is freed is freed by its last reference."""
    gc.disable()
    yield
    gc.enable()
