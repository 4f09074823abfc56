"""Before and while a model serves: which rows it is tried with; models are worked on one after the other."""

from __future__ import annotations

import asyncio
import logging
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fakes import MS, virtual

from app.contract import SampleRow
from app.engine.profiling.service import WorkQueue
from app.errors import ConfigError

from ..rig import Rig, assert_answer, make_model, serving, tensor
from .test_idle import measured, measuring, origins

# Invariant: no model serves whose rows depend on their batch, unless told so; one that raises on made-up rows does.


SEQUENCE = tensor("x", "FP32", ("tokens", 40), 2)


def mean(x: torch.Tensor) -> torch.Tensor:
    """Over padding too."""
    return x.mean(1)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@virtual
async def test_rows_that_depend_on_their_batch_are_refused_warned_about_or_not_looked_at(caplog):
    async with serving() as rig:
        bad = {"name": "bad", "row_check": "refuse", "max_batch": 4}
        with pytest.raises(ConfigError, match="a row's answer depends on the other rows of its batch: output 'y'"):
            await rig.engine.start(make_model(lambda x: x.softmax(0), **bad))
        with pytest.raises(ConfigError, match=r"depends on how far it is padded: .* to length 16 \(axis 'tokens', its"):
            await rig.engine.start(make_model(mean, [SEQUENCE], **bad))
        assert [gauges.stats.model for gauges in rig.engine.snapshot().models] == ["m"]
        assert len(rig.device.freed) == 2
        await rig.engine.start(make_model(name="good", row_check="refuse"))
        assert warnings_of(caplog) == []
        await rig.engine.start(make_model(mean, [SEQUENCE], name="off", row_check="off", max_batch=4))
        assert warnings_of(caplog) == []
        await rig.engine.start(make_model(mean, [SEQUENCE], name="warn", row_check="warn", max_batch=4))
        (warning,) = warnings_of(caplog)
        assert warning.startswith("model warn: a row's answer depends on how far it is padded: output 'y': ")


@virtual
async def test_samples_are_what_is_measured_with():
    seen: set[float] = set()

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.update(x[:, 0].tolist())
        return x * 2 + 1

    rows = [SampleRow((np.full(2, value, np.float32),)) for value in (7, 8, 9)]
    async with measuring(make_model(call, samples=rows, row_check="refuse")) as rig:
        assert origins(rig) == ["measured"]
        assert rig.served.example is rows[0]
    assert seen == {7, 8, 9}


# models that raise on made-up rows


def picky(x: torch.Tensor) -> torch.Tensor:
    """y = 2 x + 1, but only for values from 10 on."""
    if (x < 10).any():
        raise ValueError("too small")
    return x * 2 + 1


async def ask_each(rig: Rig, *values: float) -> None:
    for value in values:
        assert_answer(await rig.ask(value), value)


@virtual
async def test_it_serves_and_is_untried_until_it_has_answered_a_call():
    async with serving(make_model(picky, row_check="refuse")) as rig:
        why = str(rig.served.untried)
        assert why.startswith(f"it raises on every made-up row: ValueError: too small at {__file__}:")
        assert 'give real rows: [warmup] file = "sample.json" in model.toml' in why
        with pytest.raises(Exception, match="too small"):
            await rig.ask(1)
        assert str(rig.served.untried) == why
        await ask_each(rig, 10, 11, 12, 13, 14, 15)
        assert origins(rig) == ["guess"]
        assert rig.served.untried is None
        assert rig.served.statistics()["starling"]["batch_scale"] == pytest.approx(1, abs=0.1)


@virtual
async def test_it_is_measured_by_its_calls_alone() -> None:
    """Rows of clients are neither kept nor run again."""
    async with measuring(make_model(picky, row_check="refuse")) as rig:
        await ask_each(rig, 10, 11, 12, 13)
        await rig.loop.passes(1000 * MS)
        assert (origins(rig), measured(rig)) == (["guess"], [])
        assert rig.served.example is None
        assert rig.served.profiled.learned().batch_ns[0] == pytest.approx(1.1 * MS, rel=0.2)


# Invariant: what works on models one after the other keeps no model that has gone, and stops for none of them.


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


async def turns() -> None:
    """Let what is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("forgotten", [0, 1])
async def test_a_model_that_has_gone_is_freed_and_the_others_follow(forgotten: int) -> None:
    bench, queue = Bench(), WorkQueue("has failed")
    models = [Named(name) for name in ("first", "second", "third")]
    for one in models:
        queue.want(one, partial(bench.work, one))
    queue.begun.set()
    await turns()
    assert bench.begun == ["first"]
    gone, left = models.pop(forgotten), models
    del one  # the loop's
    freed = weakref.ref(gone)
    await queue.forget(gone)
    del gone
    assert freed() is None  # at once, without a garbage collection
    await turns()
    assert bench.begun == (["first"] if forgotten else ["first", "second"])
    await queue.forget(left[0])
    await turns()
    assert bench.begun[-1] == "third"
    await queue.forget()


async def test_an_error_is_logged_and_the_next_model_follows(caplog: pytest.LogCaptureFixture) -> None:
    bench, queue = Bench(), WorkQueue("has failed")
    queue.begun.set()
    for one in map(Named, ("broken", "second")):
        queue.want(one, partial(bench.work, one))
    await turns()
    assert bench.begun == ["broken", "second"]
    assert "model broken: has failed" in caplog.text
    await queue.forget()
