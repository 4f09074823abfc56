"""A whole engine on every device: what is asked over many calls is answered, once, from its own rows, whatever else
happens. Models in one piece; test_engine_boundaries.py has those in stages and recurrent ones.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from app.contract import UNBOUNDED
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.errors import ConfigError, NotReady
from app.models.sources.onnx_model import OnnxModel
from app.scheduler.scheduler import Scheduler

from .places import Linear, Place, crowd, only
from .rig import FATAL, Affine, X, Y, answers, ask, make_model, rows_of, started, tensor


async def test_calls_get_their_own_answers(place: Place):
    async with place.serving() as engine:
        served = await started(engine, make_model(Linear(), max_batch=4))
        assert getattr(served.executor, "graphs", False) == place.graphs
        for wave in range(4):
            await crowd(served, 100 * wave, 60)
        assert served.pool.used == 0
        assert place.kind == "cpu" or {worker for worker, _ in served.stats.batches} == {0, 1, 2}
        await engine.stop(served)


@only("graphs")
async def test_best_effort_rows_are_copied_when_their_unit_is_pushed(place: Place, monkeypatch):
    """Copied on arrival, rows of a hundred uploads would be copied before those of a real-time call."""
    async with place.serving() as engine:
        served = await started(engine, make_model(Linear(), max_batch=4))
        device, log = engine.device, []
        arrive, push = device.arrive, device.push
        monkeypatch.setattr(device, "arrive", lambda *given: (log.append("arrive"), arrive(*given)))
        monkeypatch.setattr(device, "push", lambda *given: (log.append("push"), push(*given)))
        for klass, order in (("best_effort", ["push"]), ("realtime", ["arrive", "push"])):
            log.clear()
            answer = await ask(served, rows_of(3.0), klass=klass)
            assert np.array_equal(answer.outputs[0], answers(rows_of(3.0)))
            assert log == order


async def test_models_are_loaded_and_go_while_others_serve(place: Place):
    """Captures on one thread, replays and allocations on others: every answer is right, and no unit fails."""
    async with place.serving() as engine:
        one = await started(engine, make_model(Linear(), name="one", max_batch=4))
        eager = await started(engine, make_model(Linear(looks=True), name="eager", max_batch=4))
        over = asyncio.Event()

        async def serve(served: ServedModel) -> int:
            waves = 0
            while not over.is_set():
                await crowd(served, waves, 20)
                waves += 1
            return waves

        waves = asyncio.gather(serve(one), serve(eager))
        for version in range(3):
            loaded = await started(engine, make_model(Linear(), name="loaded", version=str(version), max_batch=4))
            assert not place.graphs or all(memory.graphs.pieces for memory in loaded.executor.memories)
            await crowd(loaded, 0, 10)
            await engine.stop(loaded)
        over.set()
        assert min(await waves) > 0
        assert engine.device.dead() is None


@only("graphs")
async def test_large_outputs_outlive_their_slots(place: Place):
    """They are lent out of pinned memory: many are held while others are computed."""
    wide = tensor("y", "FP32", 20_000)

    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :1].expand(-1, 20_000)

    async with place.serving() as engine:
        served = await started(engine, make_model(Wide(), [X], [wide], max_batch=4))
        kept = [await ask(served, rows_of(float(number))) for number in range(2, 30)]
        for number, answer in enumerate(kept, 2):
            assert answer.outputs[0].shape == (1, 20_000)
            assert (answer.outputs[0] == number).all()


@pytest.mark.parametrize("bound", [8, UNBOUNDED])
@only("graphs")
async def test_rows_of_different_lengths(place: Place, bound: int):
    """Padding is neither 0 nor counted: the model knows the lengths, and which values are a row's own."""
    x, y = tensor("x", "INT64", ("n", bound), pad_value=5), tensor("y", "INT64", ("n", bound))
    mask, length = tensor("mask", "BOOL", ("n", bound), mask_of="x"), tensor("length", "INT32", lengths_of="n")

    class Count(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
            return x * 100 + 10 * mask.sum(1, keepdim=True) + length[:, None]

    async def one(served: ServedModel, number: int) -> None:
        values = np.full((2, 1 + number % 8), number, np.int64)
        with served.lease(2, lengths={"n": values.shape[1]}) as lease:
            lease.write(0, values)
            answer = await lease.run()
        assert np.array_equal(answer.outputs[0], values * 100 + 11 * values.shape[1])

    async def ragged(served: ServedModel, number: int) -> None:
        """Rows of one call of lengths of their own."""
        lengths = [1 + number % 8, 1 + number % 3, 1 + number % 5]
        values = np.full((3, max(lengths)), number, np.int64)
        with served.lease(3, lengths={"n": max(lengths)}, own_lengths={"n": lengths}) as lease:
            lease.write(0, values)
            answer = await lease.run()
        for row, length in zip(answer.outputs[0], lengths, strict=True):
            assert row[:length].tolist() == [number * 100 + 11 * length] * length

    async with place.serving() as engine:
        served = await started(engine, make_model(Count(), [x, mask, length], [y], max_batch=4, row_check="refuse"))
        assert hasattr(served.executor, "graphs")  # it runs on the streams, not beside them
        await asyncio.gather(*(one(served, number) for number in range(1, 60)))
        if bound:
            await asyncio.gather(*(ragged(served, number) for number in range(1, 30)))
        assert served.pool.used == 0


@only("graphs")
async def test_a_model_that_cannot_be_moved_runs_on_the_cpu(place: Place, caplog):
    async with place.serving() as engine:
        plain = await started(engine, make_model(max_batch=4))
        moved = await started(engine, make_model(Linear(), name="l", max_batch=4))
        await asyncio.gather(crowd(plain, 2, 30), crowd(moved, 2, 30))
        await engine.stop(plain)
    assert "model m: no nn.Module" in caplog.text


class Mean(nn.Module):
    """What padding changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


@pytest.mark.parametrize("bound", [40, 512])
@only("graphs")
async def test_a_model_whose_rows_depend_on_their_batch_is_refused(place: Place, bound: int):
    """The row check runs through slots, copies and streams as calls do, rows of different lengths too."""

    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(1)

    sequence = tensor("x", "FP32", ("tokens", bound), 2)  # graphs for lengths 10, 20 and 40; for 16, 32 and on
    async with place.serving() as engine:
        with pytest.raises(ConfigError, match=r"padded to length 16 \(axis 'tokens', its own length is 8\)"):
            await engine.start(make_model(Mean(), [sequence], [Y], max_batch=4, row_check="refuse"))
        await engine.start(make_model(Total(), [sequence], [Y], max_batch=4, row_check="refuse"))
        with pytest.raises(ConfigError, match="depends on the other rows of its batch"):
            await engine.start(make_model(nn.Softmax(0), [X], [Y], max_batch=4, row_check="refuse"))
        await engine.start(make_model(nn.Softmax(1), [X], [Y], max_batch=4, row_check="refuse"))


@only("cpu", "graphs")
async def test_a_device_that_fails_answers_every_call(place: Place):
    """A worker's thread that ends, or an error of the accelerator."""
    device, why = place.device(), []
    async with Engine(Profiling(device), Scheduler(device.spec), on_lost=why.append) as engine:
        served = await started(engine, make_model(Affine() if place.kind == "cpu" else Linear(), max_batch=4))

        def fail(*args):
            raise torch.AcceleratorError("an illegal memory access was encountered")

        place.runtime.synchronize = fail  # type: ignore[method-assign]
        calls = [asyncio.create_task(ask(served, rows_of(FATAL))) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {NotReady}
        assert why == [engine.stuck()]
        with pytest.raises(NotReady, match="has died: GeneratorExit" if place.kind == "cpu" else "illegal memory"):
            await ask(served, rows_of(1.0))
    assert device.close(10)


# models that are files


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")
@only("cpu", "graphs")
async def test_torchscript(place: Place):
    async with place.serving() as engine:
        model = make_model(torch.jit.script(Linear().eval()), max_batch=4, row_check="refuse")
        await crowd(await started(engine, model), 0, 60)


def onnx_file(folder: Path) -> OnnxModel:
    """y = 2 x + 1."""
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y")]
    nodes = [helper.make_node("Mul", ["x", "two"], ["z"]), helper.make_node("Add", ["z", "one"], ["y"])]
    numbers = [numpy_helper.from_array(np.float32(n), name) for n, name in ((2, "two"), (1, "one"))]
    made = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], numbers)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return OnnxModel(folder / "m.onnx", ["x"], ["y"])


@only("cpu", "graphs")
async def test_onnx_runs_on_the_cpu_beside_a_gpu_with_a_workers_threads(place: Place, tmp_path: Path, caplog):
    model = onnx_file(tmp_path)
    async with place.serving() as engine:
        await crowd(await started(engine, make_model(model, max_batch=4, row_check="refuse")), 0, 60)
    assert model.threads == 1
    assert ("it runs on the CPU" in caplog.text) == place.graphs
