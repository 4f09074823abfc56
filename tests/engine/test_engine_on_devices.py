"""A whole engine on every device: what is asked over many calls is answered, once, from its own rows, whatever else
happens. That units of any rows give each row its own is shown in conformance/.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from app.contract import UNBOUNDED
from app.engine.served_model import ServedModel
from app.errors import ConfigError
from app.models import Recurrent, packed_weights
from app.models.placement import Placement
from app.models.recurrent.rnn import by_its_layer
from app.models.sources.onnx_model import OnnxModel

from .conformance.models import MODELS
from .places import Place, answered, captured, crowd, only, turn
from .rig import Linear, ask, make_model, recurrent, strict, tensor
from .streams.losing import LAST, lose


@pytest.mark.parametrize("policy", ["no_wait", "adaptive"])
@pytest.mark.parametrize("model", [name for name in MODELS if name not in ("whole", "cell that ends rows by itself")])
async def test_rows_join_and_leave_at_boundaries_and_nothing_is_left_of_them(place: Place, model: str, policy: str):
    """Of models in stages, recurrent ones and such of any length; some callers leave. Models whose calls of several
    workers would share memory are left out."""
    trips = MODELS[model]()
    info = trips.model.info
    asked = replace(trips.model, info=replace(info, batching=info.batching.model_copy(update={"policy": policy})))
    async with place.serving() as engine:
        served = await engine.start(asked)
        assert captured(served) == (place.graphs and "without bound" not in model)
        await answered(served, trips, 100, 40)
        await answered(served, trips, 200, 40, leave=True)
        await engine.stop(served)
        kept = served.executor.activations
        assert served.pool.used == 0
        assert kept is None or (len(kept), kept.nbytes) == (0, 0)


class Kept(torch.nn.Module):
    """Fills a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.filled = torch.empty(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.mul(x, 2, out=self.filled[: len(x)])
        time.sleep(0)  # another thread may go on
        return self.filled[: len(x)].clone()


class KeptOrNothing(Kept):
    """Answers the first rows that are made up alike, as a classifier does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = super().forward(x)
        return kept * (kept > 0).all(1, keepdim=True)


class Sized(torch.nn.Module):
    """Keeps the size of its batch, as it may keep a mask, lengths or an order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.size = len(x)
        time.sleep(0)
        return x.reshape(self.size, 2) * 2


class Borrowed(torch.nn.Module):
    """Raises while another call runs, as what is made for one thread does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0)
        alone, self.calls = self.calls == 1, 0
        if not alone:
            raise RuntimeError("Already borrowed")
        return x * 2


class Lent(torch.nn.Module):
    """Lends what it has for each of two workers."""

    def __init__(self) -> None:
        super().__init__()
        self.free = [2, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.free.pop()
        time.sleep(0)
        made = x * factor
        self.free.append(factor)
        return made


class Salient(torch.nn.Module):
    """The gradient by its inputs, which `backward` also adds to its weight's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            own = x.clone().requires_grad_()
            (own * self.weight).sum().backward()
            return own.grad


async def test_a_model_that_two_workers_cannot_share_is_refused(place: Place):
    if place.graphs or place.runtime.device.type != "cpu":
        pytest.skip("replays share no memory that the model's code allocates; on a GPU nothing is tried at once")
    async with place.serving() as engine:
        value = "output 'y': "
        shared = {
            Kept: value,
            KeptOrNothing: value,
            Sized: ".* is invalid",
            Borrowed: ".*borrowed",
            Salient: ".*weight",
        }
        for kept, told in shared.items():
            with pytest.raises(ConfigError, match=f"a batch that another worker runs at the same time: {told}"):
                await engine.start(make_model(kept(), row_check="refuse", max_batch=4))
        for unlike in (lambda x: x * torch.rand(1), Linear(), Lent()):
            await engine.start(make_model(unlike, name=str(id(unlike)), row_check="refuse", max_batch=1))


async def test_a_model_that_reads_the_parameters_of_one_row_for_all_is_refused(place: Place):
    def first(x: torch.Tensor, parameters: list[dict[str, float]]) -> torch.Tensor:
        return x * parameters[0].get("by", 2.0)

    def each(x: torch.Tensor, parameters: list[dict[str, float]]) -> torch.Tensor:
        return x * torch.tensor([row.get("by", 2.0) if row else 2.0 for row in parameters], device=x.device)[:, None]

    async with place.serving() as engine:
        with pytest.raises(ConfigError, match="of the parameters of a batch those of its first row alone are read"):
            await engine.start(make_model(first, takes_parameters=True, row_check="refuse", max_batch=4))
        await engine.start(make_model(each, takes_parameters=True, row_check="refuse", max_batch=4))
        await engine.start(make_model(first, name="alone", takes_parameters=True, row_check="refuse", max_batch=1))


async def test_models_are_loaded_and_go_while_others_serve(place: Place):
    """Captures on one thread, replays and allocations on others: every answer is right, and no unit fails."""
    async with place.serving() as engine:
        one = await engine.start(make_model(Linear(), name="one", max_batch=4))
        eager = await engine.start(make_model(Linear(strict), name="eager", max_batch=4))
        over = asyncio.Event()

        async def serve(served: ServedModel) -> int:
            waves = 0
            while not over.is_set():
                await crowd(served, waves, 20)
                waves += 1
            return waves

        waves = asyncio.gather(serve(one), serve(eager))
        for version in range(3):
            loaded = await engine.start(make_model(Linear(), name="loaded", version=str(version), max_batch=4))
            assert captured(loaded) == place.graphs
            await crowd(loaded, 0, 10)
            await engine.stop(loaded)
        over.set()
        assert min(await waves) > 0
        assert engine.device.dead() is None


@only("cpu")
@pytest.mark.parametrize("name", [name for name in MODELS if name != "cell that ends rows by itself"])
async def test_a_model_that_goes_is_freed_without_a_garbage_collection(place: Place, name: str, no_collections: None):
    async with place.serving() as engine:
        trips = MODELS[name]()
        served = await engine.start(trips.model)
        await answered(served, trips, 100, 8)
        parts = [weakref.ref(part) for part in (served, served.executor, served.model.call, *served.model.stages.calls)]
        await engine.stop(served)
        del served, trips
        await turn()
    engine._loader.shutdown(wait=True)  # until they have ended, threads may hold on to what they did last
    assert [part() for part in parts] == [None] * len(parts)


class Fussy(nn.Module):
    """Adds up its rows. None that is made up is large enough for it."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def step(self, x: torch.Tensor, state: tuple[torch.Tensor]) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        if (x < 5).any():
            raise ValueError("too small")
        total = state[0] + x * self.one
        return total, (total,)


async def test_a_recurrent_model_that_raises_on_made_up_rows_serves_others(place: Place) -> None:
    model = recurrent(Recurrent(Fussy(), ((),)), [tensor("x", "FP32", ("n", 6))], [tensor("y", "FP32")])
    async with place.serves(model) as served:
        assert served.executor.steps is None
        for length in (1, 3):
            assert (await ask(served, np.full((2, length), 7, np.float32))).outputs[0].tolist() == [7 * length] * 2


def ends(x: torch.Tensor) -> None:
    """A row of 66 ends the thread, which nobody can trust any more."""
    if bool((x[:, 0] == LAST).any()):
        raise GeneratorExit("enough")


def assert_told(told: dict[str, Any]) -> None:
    """Of a device that was lost: nobody who had an answer before lost it, and all others have been told."""
    assert told["answered"] == 10
    assert set(told["ends"]) <= {"Answer", "NotReady"}, told
    assert told["ends"]["NotReady"] >= 2, "the call that broke it, and the one that came later"
    assert sum(told["ends"].values()) == 32


@only("eager")
async def test_all_calls_are_told_of_a_device_that_is_lost(place: Place):
    told = await lose(place, Linear(ends))
    assert_told(told)
    assert told["dead"] == "GeneratorExit: enough"


# recurrent models


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
        answer = await ask(served, values)
        last, sums, count = answer.outputs
        assert answer.lengths == count.tolist()
        assert sums.shape == (len(values), max(answer.lengths))
        for row, read in enumerate(answer.lengths):
            rises = np.flatnonzero(np.diff(values[row]) >= 0)
            assert read == (rises[0] + 2 if len(rises) else values.shape[1])
            assert last[row] == values[row, read - 1]
            assert sums[row].tolist() == [*(values[row, :read].cumsum() - 1), *[0] * (sums.shape[1] - read)]

    async with place.serves(model) as served:
        await asyncio.gather(*(one(served, number) for number in range(60)))


class Tagger(nn.Module):
    """A layer with something before it and behind each of its steps; `mean`: a mean over all steps, which padding
    would change."""

    def __init__(self, mean: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding = nn.Embedding(50, 8)
            self.lstm = nn.LSTM(8, 16, 2, batch_first=True)
            self.head = nn.Linear(16, 3)
        self.mean = mean
        self.eval()

    def forward(self, ids: torch.Tensor) -> Any:
        steps, (hidden, _) = self.lstm(self.embedding(ids))
        return (steps.mean(1),) if self.mean else (self.head(steps), hidden[-1])


@pytest.mark.parametrize(
    ("mean", "bound", "least", "precision"),
    [
        pytest.param(False, 40, 1, "fp32", id="strides"),
        pytest.param(False, UNBOUNDED, 1, "fp32", id="unbounded"),
        pytest.param(True, 12, packed_weights.LEAST_TO_PACK, "bf16", id="mean-bf16"),
    ],
)
async def test_each_row_gets_what_the_module_gives_it_alone(place, mean, bound, least, precision, monkeypatch) -> None:
    monkeypatch.setattr(packed_weights, "LEAST_TO_PACK", least)
    inputs, outputs = [tensor("ids", "INT64", ("n", bound))], [tensor("y", "FP32", 16)]
    outputs = outputs if mean else [tensor("tags", "FP32", ("n", bound), 3), *outputs]
    declared = by_its_layer(Tagger(mean), make_model(None, inputs, outputs).info)
    model = recurrent(declared, inputs, outputs, row_check="refuse")
    alone = Tagger(mean)  # the other may be moved and cast

    async def one(served: ServedModel, number: int) -> None:
        ids = np.random.default_rng(number).integers(1, 50, (1 + number % 2, 1 + 7 * number % (bound or 40)))
        for _ in range(number % 7):  # they come one after another, while others are under way
            await turn()
        got = (await ask(served, ids)).outputs
        with torch.inference_mode():
            wanted = alone(torch.from_numpy(ids))
        for values, expected in zip(got, wanted, strict=True):
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, expected.numpy(), atol=0.05 if precision == "bf16" else 1e-3)

    async with place.serves(model, placement=Placement(precision=precision)) as served:
        assert (served.executor.steps is not None) == (place.kind == "cpu" or bound != UNBOUNDED)
        await asyncio.gather(*(one(served, number) for number in range(16)))


# models that are files


@only("graphs")
async def test_torchscript(place: Place):
    model = make_model(torch.jit.script(Linear().eval()), max_batch=4, row_check="refuse")
    async with place.serves(model) as served:
        await crowd(served, 0, 60)


def onnx_file(folder: Path) -> OnnxModel:
    """y = 2 x + 1."""
    from onnx import helper

    from tests.models import onnx_graphs as graphs

    nodes = [helper.make_node("Mul", ["x", "two"], ["z"]), helper.make_node("Add", ["z", "one"], ["y"])]
    x, y = (graphs.tensor(name, ["n", 2]) for name in "xy")
    weights = {"two": np.float32(2), "one": np.float32(1)}
    return OnnxModel(graphs.save(folder / "m.onnx", nodes, [x], [y], weights), ["x"], ["y"])


@only("cpu", "graphs")
async def test_onnx_runs_on_the_cpu_beside_a_gpu_with_a_workers_threads(place: Place, tmp_path: Path, caplog):
    pytest.importorskip("onnxruntime", reason="a machine that has a GPU for a while may lack it")
    model = onnx_file(tmp_path)
    async with place.serves(make_model(model, max_batch=4, row_check="refuse")) as served:
        await crowd(served, 0, 60)
    assert model.threads == 1
    assert ("it runs on the CPU" in caplog.text) == place.graphs
