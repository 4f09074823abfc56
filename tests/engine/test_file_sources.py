"""Models that are files, on both devices: rows of many calls at once, on several workers, get their own answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from runtimes import HostRuntime
from torch import nn

from app.contract import Model
from app.engine.cpu.device import CpuDevice
from app.engine.device import Device
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.streams.device import StreamDevice
from app.models.sources.onnx_model import OnnxModel
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import WorkerSpec

from .rig import answers, ask, make_model, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + 1


def graph(folder: Path) -> OnnxModel:
    """y = 2 x + 1."""
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y")]
    nodes = [helper.make_node("Mul", ["x", "two"], ["z"]), helper.make_node("Add", ["z", "one"], ["y"])]
    numbers = [numpy_helper.from_array(np.float32(n), name) for n, name in ((2, "two"), (1, "one"))]
    made = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], numbers)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return OnnxModel(folder / "m.onnx", ["x"], ["y"])


@pytest.fixture(params=["cpu", "streams"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    threads = torch.get_num_threads()
    host = CpuDevice((4, 2), threads=1, cores=2)
    with HostRuntime() as runtime:
        specs = (WorkerSpec(4), WorkerSpec(2))
        device = host if request.param == "cpu" else StreamDevice(runtime, specs, host=host)
        yield device
        assert device.close(10)
    torch.set_num_threads(threads)


async def crowd(device: Device, model: Model) -> None:
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        served = await engine.start(model)
        calls = [rows_of(*[float(10 * call + row) for row in range(1 + call % 3)]) for call in range(60)]
        got = await asyncio.gather(*(ask(served, rows) for rows in calls))  # type: ignore[arg-type]
        for rows, answer in zip(calls, got, strict=True):
            assert np.array_equal(answer.outputs[0], answers(rows))
        await engine.stop(served)


async def test_torchscript(device: Device):
    await crowd(device, make_model(torch.jit.script(Linear().eval()), max_batch=4, row_check="refuse"))


async def test_onnx_runs_on_the_cpu_beside_a_gpu_with_a_workers_threads(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    model = graph(tmp_path)
    await crowd(device, make_model(model, max_batch=4, row_check="refuse"))
    assert model.threads == 1
    assert ("it runs on the CPU" in caplog.text) is isinstance(device, StreamDevice)
