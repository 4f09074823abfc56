"""Invariant: what works on models one after the other keeps no model that has gone, and stops for none of them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import pytest

from app.engine.profiling.one_by_one import OneByOne


class Named:
    """What is known here of a model."""

    def __init__(self, name: str) -> None:
        self.name = name


class Bench:
    """Work that never ends by itself, but for models called `broken`, and the names of those that it was done with."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def work(self, model: Any) -> None:
        self.begun.append(model.name)
        if model.name == "broken":
            raise ValueError("broken")
        await asyncio.get_running_loop().create_future()


def model(name: str) -> Any:
    return Named(name)


async def turns() -> None:
    """Let what is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("forgotten", [0, 1])
async def test_a_model_that_has_gone_is_freed_and_the_others_follow(forgotten: int) -> None:
    bench, one_by_one = Bench(), OneByOne("has failed")
    models = [model("first"), model("second"), model("third")]
    for one in models:
        one_by_one.want(one, partial(bench.work, one))
    one_by_one.begun.set()
    await turns()
    assert bench.begun == ["first"]
    gone, left = models.pop(forgotten), models
    del one  # the loop's
    one_by_one.forget(gone)
    freed = weakref.ref(gone)
    del gone
    await turns()
    gc.collect()
    assert freed() is None
    assert bench.begun == (["first"] if forgotten else ["first", "second"])
    one_by_one.forget(left[0])
    await turns()
    assert bench.begun[-1] == "third"
    await one_by_one.close()


async def test_an_error_is_logged_and_the_next_model_follows(caplog: pytest.LogCaptureFixture) -> None:
    bench, one_by_one = Bench(), OneByOne("has failed")
    one_by_one.begun.set()
    for one in (model("broken"), model("second")):
        one_by_one.want(one, partial(bench.work, one))
    await turns()
    assert bench.begun == ["broken", "second"]
    assert "model broken: has failed" in caplog.text
    await one_by_one.close()
