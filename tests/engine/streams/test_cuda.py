"""The tests of a whole engine over streams again, on a GPU, and what only a GPU can show."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from app.contract import Model, ModelSource
from app.engine.streams.cuda import CudaRuntime, device_index, torch_release
from app.models.loading import load

from .. import test_engine_on_devices as whole
from ..conformance.models import staged, sums
from ..places import Place, answered, captured, crowd
from ..rig import Linear, answers, ask, make_model, rows_of, strict, tensor
from ..test_engine_on_devices import assert_told

# Collected here as well, and run on this module's device.
globals().update({name: test for name, test in vars(whole).items() if name.startswith("test_")})

pytestmark = pytest.mark.cuda

WIDTH = 1024


@pytest.fixture
def runtime() -> CudaRuntime:
    return CudaRuntime(device_index("auto"))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Or the graphs of a test go at some time during the next one."""
    yield
    gc.collect()


@pytest.fixture(params=["graphs", "eager"])
def place(request: pytest.FixtureRequest, runtime: CudaRuntime) -> Place:
    if request.param == "cpu":
        pytest.skip("no device of streams")
    return Place(request.param, runtime)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Whatever makes the host wait for the device, but for events, is an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls this mode a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def wide(**options: str) -> Model:
    return make_model(network(), [tensor("x", "FP32", WIDTH)], [tensor("y", "FP32", 10)], max_batch=4, **options)


async def outputs(place: Place) -> np.ndarray:
    """What 40 rows give, one call each, all at once."""
    rows = np.random.default_rng(0).standard_normal((40, WIDTH), np.float32)
    async with place.serving() as engine:
        served = await engine.start(wide())
        got = await asyncio.gather(*(ask(served, row[None]) for row in rows))
    return np.concatenate([answer.outputs[0] for answer in got])


async def test_serving_never_synchronises(place: Place):
    """Nor do stages and steps."""
    async with place.serving() as engine:
        whole = await engine.start(make_model(Linear(), max_batch=4))
        models = [(trips, await engine.start(trips.model)) for trips in (staged(), sums())]
        with no_synchronisation():
            await crowd(whole, 0, 100)
            await asyncio.gather(*(answered(served, trips, 100, 60) for trips, served in models))


async def test_a_stage_and_a_step_are_a_graph_each(runtime: CudaRuntime):
    async with Place("graphs", runtime).serving() as engine:
        for trips, pieces in ((staged(), 4), (sums(), 1)):
            served = await engine.start(trips.model)
            graphs = [graph for memory in served.executor.memories for graph in memory.graphs.values()]
            assert {len(graph) for graph in graphs} == {pieces}


async def test_serving_does_not_use_the_default_stream(runtime: CudaRuntime):
    """It is busy all the while; whoever used it would have to wait until it is not."""
    async with Place("graphs", runtime).serving() as engine:
        served = await engine.start(make_model(Linear(), max_batch=4))
        models = [(trips, await engine.start(trips.model)) for trips in (staged(), sums())]
        await crowd(served, 0, 40)  # what is loaded at first use may wait for the device
        default = torch.cuda.default_stream(runtime.device)
        with torch.cuda.stream(default):
            torch.cuda._sleep(4_000_000_000)  # two seconds or so
        await crowd(served, 0, 40)
        for trips, other in models:
            await answered(other, trips, 100, 40)
        assert not default.query()
        default.synchronize()


async def test_graphs_give_what_eager_gives(runtime: CudaRuntime):
    with_graphs = await outputs(Place("graphs", runtime))
    without = await outputs(Place("eager", runtime))
    assert np.allclose(with_graphs, without, atol=1e-2)
    with torch.inference_mode():
        rows = np.random.default_rng(0).standard_normal((40, WIDTH), np.float32)
        expected = network()(torch.from_numpy(rows)).numpy()
    assert np.allclose(with_graphs, expected, atol=1e-2)


async def test_a_batch_takes_its_own_time_and_not_that_of_copies(runtime: CudaRuntime):
    async with Place("graphs", runtime).serving() as engine:
        served = await engine.start(make_model(Linear(), max_batch=4))
        in_stream = engine.device.in_stream.stream
        runtime.enqueue(in_stream, lambda: torch.cuda._sleep(1_000_000_000))  # half a second or so
        answer = await ask(served, rows_of(3.0))
        (parts,) = served.stats.whole.by_size().values()
        assert np.array_equal(answer.outputs[0], answers(rows_of(3.0)))
        assert parts.infer_ns < parts.input_ns


def allocated(runtime: CudaRuntime) -> int:
    """Without cuBLAS workspaces, of which each stream has 32 MiB on Hopper. Only where there are no graphs."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated(runtime.device)


async def test_weights_are_there_once_and_staging_is_pinned(runtime: CudaRuntime):
    before = allocated(runtime)
    big = nn.Linear(4096, 4096)  # 64 MiB
    model = make_model(big, [tensor("x", "FP32", 4096)], [tensor("y", "FP32", 4096)], max_batch=4, max_queue=16)
    async with Place("eager", runtime).serving() as engine:
        served = await engine.start(model)
        assert served.pool.slabs[0].is_pinned()
        used = allocated(runtime) - before
        assert used < 1.5 * sum(weight.nbytes for weight in big.parameters())


def test_pinned_memory_is_as_large_as_asked_for(runtime: CudaRuntime):
    """By torch's default, and always before 2.12, it would be 128 MiB."""
    wanted = 65 if hasattr(torch._C, "_accelerator_getAllocatorSettings") else 128
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    host = runtime.pinned((65 << 20,), torch.uint8)
    assert host.is_pinned()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before == wanted << 20
    device = runtime.empty((65 << 20,), torch.uint8)
    host.copy_(torch.arange(65 << 20) % 251)
    stream, event = runtime.stream(), runtime.event()
    with no_synchronisation():
        runtime.enqueue(stream, lambda: device.copy_(host, non_blocking=True))
        runtime.record(event, stream)
    runtime.synchronize(event)
    assert torch.equal(device.cpu(), host)


async def test_a_reload_leaves_other_models_graphs_alone(runtime: CudaRuntime):
    """A graph that goes takes the cuBLAS workspace of its stream with it."""
    row = np.ones((1, WIDTH), np.float32)
    async with Place("graphs", runtime).serving() as engine:
        stays = await engine.start(wide(name="stays"))
        expected = (await ask(stays, row)).outputs[0].copy()
        for version in range(5):
            goes = await engine.start(wide(name="goes", version=str(version)))
            assert np.allclose((await ask(goes, row)).outputs[0], expected, atol=1e-3)
            await engine.stop(goes)
            del goes
            gc.collect()
            torch.cuda.empty_cache()
            assert np.allclose((await ask(stays, row)).outputs[0], expected, atol=1e-3)


async def test_a_model_that_cannot_be_captured_leaves_capturing_to_others(runtime: CudaRuntime):
    """The allocator believes, until told, that a capture which failed still goes on."""
    row = np.ones((1, WIDTH), np.float32)
    async with Place("graphs", runtime).serving() as engine:
        looks = await engine.start(make_model(Linear(strict), name="looks", max_batch=4))
        assert np.array_equal((await ask(looks, rows_of(3.0))).outputs[0], answers(rows_of(3.0)))
        assert not looks.executor.graphs
        torch.cuda.empty_cache()
        torch.rand(1, device=runtime.device)  # its generator, until told, believes so too
        other = await engine.start(wide(name="other"))
        assert other.executor.graphs
        assert all(memory.graphs for memory in other.executor.memories)
        assert (await ask(other, row)).outputs[0].shape == (1, 10)


async def test_models_that_draw_random_numbers_serve_while_others_are_loaded(runtime: CudaRuntime):
    graphs = torch_release() >= (2, 13)
    async with Place("graphs", runtime).serving() as engine:
        draws = await engine.start(make_model(Linear(torch.rand_like), name="draws", max_batch=4))
        serving = asyncio.gather(*(crowd(draws, 100 * wave, 20) for wave in range(10)))
        other = await engine.start(make_model(Linear(), name="other", max_batch=4))
        await asyncio.gather(serving, crowd(other, 0, 40))
        assert (captured(draws), captured(other)) == (graphs, graphs)


def heavy(x: torch.Tensor) -> None:
    """A batch with a row of -2 takes more memory than there is, unless that row is alone."""
    if len(x) > 1 and bool((x[:, 0] == -2).any()):
        torch.empty(1 << 44, dtype=torch.uint8, device=x.device)


async def test_a_batch_that_runs_out_of_memory_is_run_again_in_parts(place: Place):
    async with place.serving() as engine:
        served = await engine.start(make_model(Linear(heavy), max_batch=4))
        values = [-2.0 if number % 5 == 0 else float(number) for number in range(40)]
        got = await asyncio.gather(*(ask(served, rows_of(value)) for value in values))
        for value, answer in zip(values, got, strict=True):
            assert np.array_equal(answer.outputs[0], answers(rows_of(value)))
        await crowd(served, 0, 40)


async def test_a_decoder_beside_models_on_the_gpu_writes_what_generate_does(runtime: CudaRuntime, tmp_path: Path):
    from tests import tiny_decoders

    from ..test_engine_writing import ask as written

    made = tiny_decoders.save(tmp_path, "gpt2", 12)
    words, rng = tiny_decoders.tokenizer(), np.random.default_rng(0)
    prompts = [rng.integers(2, 200, 1 + number % 29).tolist() for number in range(20)]
    async with Place("graphs", runtime).serving() as engine:
        beside = await engine.start(make_model(Linear(), max_batch=4))
        writer = await engine.start(load(ModelSource("writer", 1, tmp_path)))
        texts, _ = await asyncio.gather(
            asyncio.gather(*(written(writer, ids) for ids in prompts)), crowd(beside, 0, 100)
        )
    for ids, text in zip(prompts, texts, strict=True):
        assert text == words.decode(tiny_decoders.generated(made, ids, 12), skip_special_tokens=True)


def test_every_call_ends_when_the_device_is_lost_and_so_can_the_process():
    """In a process of its own, since no other work of that process runs on the GPU again."""
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), str(root / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.streams.losing"]
    environment, pipe = {**os.environ, "PYTHONPATH": path}, subprocess.PIPE
    losers = [
        subprocess.Popen([*command, kind], env=environment, stdout=pipe, stderr=pipe, text=True)
        for kind in ("graphs", "eager")
    ]
    try:
        ends = [loser.communicate(timeout=50) for loser in losers]
    finally:
        for loser in losers:
            loser.kill()
            loser.wait()
    for loser, (printed, errors) in zip(losers, ends, strict=True):
        assert loser.returncode == 0, errors[-2000:]
        told = json.loads(printed.splitlines()[-1])
        assert "AcceleratorError" in told["dead"]
        assert_told(told)
