"""A model, and what sends requests to it."""

from __future__ import annotations

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
def caller(request: pytest.FixtureRequest) -> MakeCaller:
    """Make a Caller for each of both ways."""
    way = request.param

    def make(model: Echo, **fields: Any) -> Caller:
        return Caller(model, way, **fields)

    return make
