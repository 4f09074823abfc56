"""Invariant: a recurrent model serves on every device, and no row sees another's length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from runtimes import HostRuntime
from torch import nn

from app.contract import UNBOUNDED, Array, Model
from app.engine.cpu.device import CpuDevice
from app.engine.device import Device, DeviceOptions
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.engine.streams.device import StreamDevice
from app.models import Recurrent
from app.models.placement import Placement
from app.models.recurrent.cells import recurrent_model
from app.models.recurrent.rnn import by_its_layer
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import WorkerSpec

from .rig import make_model, started, tensor

#: By device: its options, and how far an answer may be off.
DEVICES = {
    "cpu": (DeviceOptions(), 1e-5),
    "bf16": (DeviceOptions(placement=Placement(precision="bf16")), 0.05),
    "streams": (DeviceOptions(), 1e-5),
}


@pytest.fixture(params=list(DEVICES))
def kind(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def device(kind: str) -> Iterator[Device]:
    """Workers of 4 and 2 rows; the streams are threads."""
    options, _ = DEVICES[kind]
    host = CpuDevice((4, 2), threads=1, cores=2, options=options)
    with HostRuntime() as runtime:
        device: Device = host
        if kind == "streams":
            device = StreamDevice(runtime, (WorkerSpec(4), WorkerSpec(2)), options, host)
        yield device
        assert device.close(10)


class Sums(nn.Module):
    """The sum of a row's steps, at each of them and in all. The weight moves with the model; numbers stay small."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def step(self, x: torch.Tensor, state: Any) -> Any:
        total = state[0] + x * self.one
        return (total, total), (total,)


class Tail(nn.Module):
    """A layer between an embedding and a mean over all steps, which padding would change."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding = nn.Embedding(50, 8)
            self.gru = nn.GRU(8, 8, 2)
        self.eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.gru(self.embedding(ids).transpose(0, 1))[0].mean(0)


class CountDown:
    """Feeds itself, ends by itself, and has no weights to move."""

    def start(self, first: torch.Tensor) -> Any:
        return None, (first,)

    def step(self, x: None, state: Any) -> Any:
        return state[0], (state[0] - 1,), state[0] == 0


def served_by_cell(declared: Recurrent, inputs: Any, outputs: Any) -> Model:
    model = make_model(None, inputs, outputs, max_batch=4, row_check="refuse")
    call, info = recurrent_model(declared, model.info)
    return Model(info, call, row_check="refuse")


async def crowd(device: Device, model: Model, calls: int, one: Callable[[ServedModel, int], Awaitable[None]]) -> None:
    """So many calls at once, `one` each, of a model that is checked at its start."""
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        served = await started(engine, model)
        await asyncio.gather(*(one(served, number) for number in range(calls)))
        assert served.pool.used == 0


async def ask(served: ServedModel, values: Array, **lengths: int) -> list[Array]:
    with served.lease(len(values), lengths=lengths) as lease:
        lease.write(0, values)
        return (await lease.run()).outputs


@pytest.mark.parametrize("bound", [9, UNBOUNDED])
async def test_a_cell(device: Device, bound: int) -> None:
    inputs = [tensor("x", "FP32", ("n", bound), 2, pad_value=7)]
    outputs = [tensor("every", "FP32", ("n", bound), 2), tensor("last", "FP32", 2)]
    model = served_by_cell(Recurrent(Sums(), ((2,),)), inputs, outputs)

    async def one(served: ServedModel, number: int) -> None:
        # On a CPU, and where rows have a bound, step by step.
        assert (served.executor.steps is not None) == (bound != UNBOUNDED or not isinstance(device, StreamDevice))
        values = np.full((1 + number % 2, 1 + number % 9, 2), number % 5, np.float32)
        every, last = await ask(served, values, n=values.shape[1])
        assert np.array_equal(every, values.cumsum(1))
        assert np.array_equal(last, values.sum(1))

    await crowd(device, model, 60, one)


async def test_a_layer(device: Device, kind: str) -> None:
    net = Tail()
    inputs, outputs = [tensor("ids", "INT64", ("n", 12))], [tensor("y", "FP32", 8)]
    model = served_by_cell(by_its_layer(net, make_model(None, inputs, outputs).info), inputs, outputs)
    plain = Tail()  # the other may be moved and cast

    async def one(served: ServedModel, number: int) -> None:
        ids = np.random.default_rng(number).integers(0, 50, (1, 1 + number % 12))
        (got,) = await ask(served, ids, n=ids.shape[1])
        with torch.inference_mode():
            wanted = plain(torch.from_numpy(ids)).numpy()
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, wanted, atol=DEVICES[kind][1])

    await crowd(device, model, 40, one)


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


async def test_rows_of_one_call_are_as_long_as_each_ran(device: Device) -> None:
    """Whatever batches they ran in: a call has more rows than a batch, and all that is beyond a row's end is zeros."""
    inputs = [tensor("x", "FP32", ("n", 9))]
    outputs = [tensor("last", "FP32"), tensor("sums", "FP32", ("read", 0)), tensor("count", "INT64")]
    model = served_by_cell(Recurrent(Below(), ((), ())), inputs, outputs)

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

    await crowd(device, model, 60, one)


async def test_a_cell_that_ends_by_itself(device: Device) -> None:
    model = served_by_cell(Recurrent(CountDown(), ((),), 10), [tensor("n", "INT64")], [tensor("y", "INT64", ("w", 0))])

    async def one(served: ServedModel, number: int) -> None:
        first = number % 13
        (got,) = await ask(served, np.array([first]))
        assert got.tolist() == [list(range(first, -1, -1))[:10]]

    await crowd(device, model, 40, one)
