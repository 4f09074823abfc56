"""A whole engine on every device: models in stages and recurrent ones, whose batches change at boundaries. A row gets
what it would get alone, and nothing is left of it when it has gone.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from app.contract import UNBOUNDED, Array, Model
from app.engine.served_model import ServedModel
from app.errors import ClientGone, ModelFailed, QueueFull
from app.models import Recurrent
from app.models.placement import Placement
from app.models.recurrent import layer_steps
from app.models.recurrent.rnn import by_its_layer
from app.scheduler.types import AT_ONCE

from .places import BAD, Place, captured, crowd, only, turn
from .rig import answers, ask, make_model, recurrent, rows_of, started, tensor

LONG = 200


class Times(nn.Module):
    """A stage with a weight. Where it may look at values, it fails when a row's first one is `bad`."""

    def __init__(self, by: float, bad: float | None = None) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(by))
        self.bad = bad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bad is not None and bool((x[:, 0] == self.bad).any()):
            raise ValueError("poisoned")
        return x * self.by


def staged(bad: bool = False, **options: Any) -> Model:
    """y = 2 x + 1 in three stages."""
    stages = [Times(4.0), Times(0.5, 4 * BAD if bad else None), lambda x: x + 1]
    return make_model(stages=stages, max_batch=4, **options)


def assert_settled(served: ServedModel) -> None:
    kept = served.executor.activations
    assert kept is not None
    assert (kept.rows, kept.nbytes) == (0, 0)
    assert served.pool.used == 0


@pytest.mark.parametrize("policy", ["no_wait", "adaptive", "dva_load"])
async def test_calls_get_their_own_answers_through_stages(place: Place, policy: str) -> None:
    """Beside rows of NaN, and one that fails at a later stage."""
    async with place.serving() as engine:
        served = await started(engine, staged(bad=not place.graphs, policy=policy))
        assert captured(served) == place.graphs
        bad = asyncio.create_task(ask(served, rows_of(BAD)))
        poison = [asyncio.create_task(ask(served, rows_of(np.nan))) for _ in range(10)]
        for wave in range(3):
            await crowd(served, 100 * wave + 1, 50)
        assert all(np.isnan(answer.outputs[0]).all() for answer in await asyncio.gather(*poison))
        if place.graphs:
            assert np.array_equal((await bad).outputs[0], answers(rows_of(BAD)))
        else:
            with pytest.raises(ModelFailed, match="ValueError: poisoned"):
                await bad
        assert len(served.statistics()["starling"]["stages"]) == 3
        assert_settled(served)
        await engine.stop(served)


async def test_callers_who_leave_between_stages_free_what_lies_there(place: Place) -> None:
    async with place.serving() as engine:
        served = await started(engine, staged())
        for turns in range(1, 6):
            tasks = [asyncio.create_task(ask(served, rows_of(5.0, 6.0))) for _ in range(40)]
            for _ in range(turns):
                await turn()
            for task in tasks[::2]:
                task.cancel()
            gone, stayed = (
                [result for result in results if not isinstance(result, QueueFull)]  # of callers who left so often
                for results in (
                    await asyncio.gather(*tasks[::2], return_exceptions=True),
                    await asyncio.gather(*tasks[1::2], return_exceptions=True),
                )
            )
            assert all(isinstance(one, (asyncio.CancelledError, ClientGone)) or one.outputs for one in gone)
            assert all(np.array_equal(one.outputs[0], answers(rows_of(5.0, 6.0))) for one in stayed)
        await engine.stop(served)
        assert_settled(served)


async def test_rows_of_different_lengths_share_batches_at_each_stage(place: Place) -> None:
    """What a stage passes on is cut and padded to the next batch; masks and what is made of inputs are made anew."""
    x, y = tensor("x", "FP32", ("n", 8), pad_value=5), tensor("y", "FP32")
    mask = tensor("mask", "FP32", ("n", 8), mask_of="x")
    model = make_model(
        None,
        [x, mask],
        [y],
        stages=[lambda x, mask: x[:, :, None] * 2, Times(3.0), lambda h, mask, half: (h[:, :, 0] * mask * half).sum(1)],
        again=[(), (), (1, 2)],
        context=lambda x, mask: (mask / 2,),
        max_batch=4,
        row_check="refuse",
    )

    async def one(served: ServedModel, number: int) -> None:
        values = np.full((1 + number % 2, 1 + number % 8), number, np.float32)
        (got,) = await run(served, values)
        assert got.tolist() == (values.sum(1) * 3).tolist()

    async with place.serving() as engine:
        served = await started(engine, model)
        await asyncio.gather(*(one(served, number) for number in range(1, 60)))
        assert_settled(served)


# recurrent models


class Sums(nn.Module):
    """What a row has read, at each of its steps and in all."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))
        self.looks = looks

    def step(self, x: torch.Tensor, state: Any) -> Any:
        if self.looks and bool((x == BAD).any()):
            raise ValueError("poisoned")
        total = state[0] + x * self.one
        return (total, total), (total,)


def sums(bound: int = LONG, looks: bool = False, **options: Any) -> Model:
    inputs = [tensor("x", "FP32", ("n", bound), pad_value=7)]
    outputs = [tensor("every", "FP32", ("n", bound)), tensor("last", "FP32")]
    return recurrent(Recurrent(Sums(looks), ((),)), inputs, outputs, row_check="refuse", **options)


async def run(served: ServedModel, values: Array) -> list[Array]:
    with served.lease(len(values), lengths={"n": values.shape[1]}) as lease:
        lease.write(0, values)
        return (await lease.run()).outputs


async def total(served: ServedModel, values: Array) -> list[float]:
    every, last = await run(served, values)
    assert np.array_equal(every, values.cumsum(1))
    found: list[float] = last.tolist()
    return found


@pytest.mark.parametrize(
    ("policy", "bound"), [("no_wait", 9), ("late", 9), ("adaptive", 9), ("no_wait", UNBOUNDED)], ids=str
)
async def test_rows_join_and_leave_between_steps(place: Place, policy: str, bound: int) -> None:
    """On streams, rows without a bound begin and end together."""

    async def one(served: ServedModel, number: int) -> None:
        values = np.full((1 + number % 2, 1 + number % 9), number, np.float32)
        assert await total(served, values) == values.sum(1).tolist()

    async with place.serving() as engine:
        served = await started(engine, sums(bound, policy=policy))
        by_steps = place.kind == "cpu" or bound != UNBOUNDED
        assert (served.executor.steps is not None) == by_steps
        assert bound == UNBOUNDED or captured(served) == place.graphs
        await asyncio.gather(*(one(served, number) for number in range(30)))
        if by_steps:
            assert_settled(served)
        await engine.stop(served)


class UntilTwo(Sums):
    """As long as a row is, or until it reads a 2. Without an answer of 6."""

    def step(self, x: torch.Tensor, state: Any) -> Any:
        (_, total), state = super().step(x, state)
        return total, state, x == 2

    def finish(self, state: Any, ys: Any, lengths: torch.Tensor) -> torch.Tensor:
        if self.looks and bool((state[0] == 6).any()):
            raise ValueError("no end")
        total: torch.Tensor = state[0]
        return total


@only("graphs", "eager")
async def test_no_step_is_launched_behind_one_that_may_end_its_rows(place: Place) -> None:
    inputs, outputs = [tensor("x", "FP32", ("n", 40))], [tensor("y", "FP32")]
    declared = Recurrent(UntilTwo(looks=not place.graphs), ((),))
    async with place.serving(push_ahead_ns=AT_ONCE) as engine:
        served = await started(engine, recurrent(declared, inputs, outputs, policy="adaptive"))
        for _ in range(5):
            rows = np.ones((12, 1, 20), np.float32)
            for number, row in enumerate(rows):
                row[0, number] = 2
            got = await asyncio.gather(*(run(served, row) for row in rows), return_exceptions=True)
            failed = got.pop(4)
            assert isinstance(failed, list if place.graphs else ModelFailed)
            assert [float(one[0][0]) for one in got] == [number + 2 for number in range(12) if number != 4]
            assert_settled(served)
        await engine.stop(served)


class Below(nn.Module):
    """Reads numbers until one is not below the last: that one and its place, and at each step the sum so far."""

    def step(self, x: torch.Tensor, state: Any) -> Any:
        last, total = state
        total = total + x
        return total, (x, total), x >= last

    def start(self, x: torch.Tensor) -> Any:
        return x, (torch.full_like(x[:, 0], 1e6), torch.zeros_like(x[:, 0]))

    def finish(self, state: Any, ys: torch.Tensor, lengths: torch.Tensor) -> Any:
        return state[0], ys - 1, lengths


async def test_rows_of_one_call_are_as_long_as_each_ran(place: Place) -> None:
    """Whatever batches they ran in: a call has more rows than a batch, and all that is beyond a row's end is zeros."""
    outputs = [tensor("last", "FP32"), tensor("sums", "FP32", ("read", 0)), tensor("count", "INT64")]
    model = recurrent(Recurrent(Below(), ((), ())), [tensor("x", "FP32", ("n", 9))], outputs, row_check="refuse")

    async def one(served: ServedModel, number: int) -> None:
        values = np.random.default_rng(number).integers(0, 9, (1 + number % 7, 1 + number % 9)).astype(np.float32)
        with served.lease(len(values), lengths={"n": values.shape[1]}) as lease:
            lease.write(0, values)
            answer = await lease.run()
        last, sums, count = answer.outputs
        assert answer.lengths == count.tolist()
        assert sums.shape == (len(values), max(answer.lengths))
        for row, read in enumerate(answer.lengths):
            rises = np.flatnonzero(np.diff(values[row]) >= 0)
            assert read == (rises[0] + 2 if len(rises) else values.shape[1])
            assert last[row] == values[row, read - 1]
            assert sums[row].tolist() == [*(values[row, :read].cumsum() - 1), *[0] * (sums.shape[1] - read)]

    async with place.serving() as engine:
        served = await started(engine, model)
        await asyncio.gather(*(one(served, number) for number in range(60)))
        assert served.pool.used == 0


class Tagger(nn.Module):
    """A layer with something before it and behind each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding = nn.Embedding(50, 8)
            self.lstm = nn.LSTM(8, 16, 2, batch_first=True)
            self.head = nn.Linear(16, 3)
        self.eval()

    def forward(self, ids: torch.Tensor) -> Any:
        steps, (hidden, _) = self.lstm(self.embedding(ids))
        return self.head(steps), hidden[-1]


class Tail(nn.Module):
    """A layer between an embedding and a mean over all steps, which padding would change."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding = nn.Embedding(50, 8)
            self.gru = nn.GRU(8, 8, 2)
        self.eval()

    def forward(self, ids: torch.Tensor) -> Any:
        return (self.gru(self.embedding(ids).transpose(0, 1))[0].mean(0),)


@pytest.mark.parametrize(
    ("kind", "bound", "least", "precision"),
    [
        pytest.param(Tagger, 40, layer_steps.LEAST, "fp32", id="tagger"),
        pytest.param(Tagger, 40, 1, "fp32", id="tagger-strides"),
        pytest.param(Tagger, UNBOUNDED, 1, "fp32", id="tagger-unbounded"),
        pytest.param(Tail, 12, layer_steps.LEAST, "bf16", id="tail-bf16"),
    ],
)
async def test_each_row_gets_what_the_module_gives_it_alone(
    place: Place, kind: type[nn.Module], bound: int, least: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_steps, "LEAST", least)
    outputs = [tensor("tags", "FP32", ("n", bound), 3), tensor("last", "FP32", 16)]
    inputs, outputs = [tensor("ids", "INT64", ("n", bound))], outputs if kind is Tagger else [tensor("y", "FP32", 8)]
    declared = by_its_layer(kind(), make_model(None, inputs, outputs).info)
    model = recurrent(declared, inputs, outputs, row_check="refuse")
    alone = kind()  # the other may be moved and cast

    async def one(served: ServedModel, number: int) -> None:
        ids = np.random.default_rng(number).integers(1, 50, (1 + number % 2, 1 + 7 * number % (bound or 40)))
        for _ in range(number % 7):  # they come one after another, while others are under way
            await turn()
        got = await run(served, ids)
        with torch.inference_mode():
            wanted = alone(torch.from_numpy(ids))
        for values, expected in zip(got, wanted, strict=True):
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, expected.numpy(), atol=0.05 if precision == "bf16" else 1e-3)

    async with place.serving(placement=Placement(precision=precision)) as engine:
        served = await started(engine, model)
        assert (served.executor.steps is not None) == (place.kind == "cpu" or bound != UNBOUNDED)
        await asyncio.gather(*(one(served, number) for number in range(16)))
        assert served.pool.used == 0
