"""Without a GPU: what CudaRuntime asks of torch.cuda is spelt as torch.cuda has it; which GPU a setting means."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock, call, create_autospec

import pytest
import torch

from app.engine.streams import cuda
from app.engine.streams.captures import Streams
from app.errors import ConfigError


@pytest.fixture
def calls(monkeypatch) -> MagicMock:
    """torch.cuda with everything that needs a device replaced by something that only knows the signatures."""
    log = MagicMock()
    for name in ("Stream", "Event", "CUDAGraph"):
        kind = getattr(torch.cuda, name)

        def make(*args, kind=kind, name=name, **kwargs):
            made = create_autospec(kind, instance=True)
            log.attach_mock(made, f"{name.lower()}_")
            log.made(name, args, kwargs)
            return made

        monkeypatch.setattr(torch.cuda, name, make)
    monkeypatch.setattr(torch.cuda, "stream", create_autospec(torch.cuda.stream, side_effect=lambda s: nullcontext()))
    for name, value in (
        ("get_device_name", "H"),
        ("set_device", None),
        ("graph_pool_handle", (0, 1)),
        ("default_stream", "default"),
    ):
        monkeypatch.setattr(torch.cuda, name, create_autospec(getattr(torch.cuda, name), return_value=value))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"u{index}"))
    return log


def test_streams_and_events(calls):
    runtime = cuda.CudaRuntime(1)
    assert (runtime.name, runtime.uuid, runtime.device) == ("cuda H", "GPU-u1", torch.device("cuda", 1))
    runtime.attach()
    stream, event = runtime.stream(-1), runtime.event()
    runtime.record(event, stream)
    runtime.wait(stream, event)
    runtime.synchronize(event)
    event.record.assert_called_once_with(stream)
    stream.wait_event.assert_called_once_with(event)
    event.synchronize.assert_called_once_with()
    assert call("Stream", (runtime.device,), {"priority": -1}) in calls.made.mock_calls
    assert call("Event", (), {"enable_timing": False, "blocking": True}) in calls.made.mock_calls
    torch.cuda.set_device.assert_called_once_with(runtime.device)


def test_time_between_events(calls):
    runtime = cuda.CudaRuntime(0)
    first, last = runtime.event(timed=True), runtime.event(timed=True)
    assert call("Event", (), {"enable_timing": True, "blocking": True}) in calls.made.mock_calls
    first.elapsed_time.return_value = 1.5  # milliseconds
    assert runtime.elapsed_ns(first, last) == 1_500_000
    first.elapsed_time.assert_called_once_with(last)


def test_work_is_enqueued_on_its_stream(calls):
    runtime = cuda.CudaRuntime(0)
    done: list[int] = []
    stream = runtime.stream()
    runtime.enqueue(stream, lambda: done.append(1))
    assert done == [1]
    torch.cuda.stream.assert_called_once_with(stream)


def test_a_capture_begins_and_ends_on_its_stream(calls):
    runtime = cuda.CudaRuntime(0)
    stream, outputs = runtime.stream(), [torch.ones(1)]
    replay, got = runtime.capture(stream, runtime.graph_pool(), lambda: outputs, [])
    assert got is outputs
    replay()
    names = [name for name, _, _ in calls.mock_calls if name.startswith("cudagraph_")]
    assert names == ["cudagraph_.capture_begin", "cudagraph_.capture_end", "cudagraph_.replay"]
    calls.cudagraph_.capture_begin.assert_called_once_with(pool=(0, 1), capture_error_mode="thread_local")
    torch.cuda.stream.assert_called_once_with(stream)


def fail() -> list[torch.Tensor]:
    raise ValueError("reads a value")


@pytest.mark.parametrize("where", ["capture_begin", "capture_end"])
def test_an_invalidated_capture_ends_and_releases_the_use_of_its_pool(calls, monkeypatch, where: str):
    """What `work` raises is raised, whatever the end of the capture says; the pool goes with the stream's graphs."""
    ended, released = Mock(), Mock()
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ended, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", released, raising=False)
    runtime, kept, made = cuda.CudaRuntime(1), [], torch.cuda.CUDAGraph

    def broken(*args, **kwargs):
        graph = made(*args, **kwargs)
        getattr(graph, where).side_effect = RuntimeError("capture was invalidated")
        return graph

    monkeypatch.setattr(torch.cuda, "CUDAGraph", broken)
    work, message = (fail, "reads a value") if where == "capture_end" else (list, "invalidated")
    with pytest.raises((ValueError, RuntimeError), match=message):
        runtime.capture(runtime.stream(), (0, 7), work, kept)
    ended.assert_called_once_with(1, (0, 7))
    assert len(runtime._failed) == 1
    released.assert_not_called()
    kept.clear()
    released.assert_called_once_with(1, (0, 7))


def test_a_capture_whose_work_fails_is_a_graph_that_goes_with_those_of_its_stream(calls, monkeypatch):
    ended, released = Mock(side_effect=RuntimeError("not currently recording")), Mock()
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ended, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", released, raising=False)
    runtime, kept = cuda.CudaRuntime(1), []
    with pytest.raises(ValueError, match="reads a value"):
        runtime.capture(runtime.stream(), (0, 7), fail, kept)
    calls.cudagraph_.capture_end.assert_called_once_with()
    assert len(kept) == 1
    assert runtime._failed == []
    kept.clear()
    released.assert_not_called()


def test_memory_is_not_allocated_in_the_name_of_a_stream_that_may_be_captured_on(calls, monkeypatch):
    """torch hands out the same 32 streams in turn."""
    ring = itertools.cycle(range(32))
    monkeypatch.setattr(torch.cuda, "Stream", lambda *args, **kwargs: next(ring))
    runtime = cuda.CudaRuntime(0)
    streams = Streams(runtime.stream)
    lent = [streams.capture(worker, 0) for worker in range(32)]
    assert runtime._home not in [capture.stream for capture in lent if capture is not None]


def test_a_torch_whose_captures_stop_replays_is_refused(calls, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.12.1+cu126"))
    with pytest.raises(ConfigError, match=r"expected torch 2\.13 or later on a GPU, got 2\.12\.1"):
        cuda.CudaRuntime(0)


class Cudart:
    """torch.cuda.cudart(), as far as it pins memory."""

    def __init__(self, result: int) -> None:
        self.result = result
        self.cudaHostRegister = Mock(side_effect=lambda address, nbytes, flags: result)
        self.cudaHostUnregister = Mock(side_effect=lambda address: result)
        self.cudaGetErrorString = Mock(return_value="not supported")


def test_large_pinned_memory_is_registered_page_by_page(calls, monkeypatch):
    cudart = Cudart(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    runtime = cuda.CudaRuntime(0)
    tensor = runtime.pinned((3 << 20,), torch.uint8)
    cudart.cudaHostRegister.assert_called_once_with(tensor.data_ptr(), 3 << 20, 0)
    address = tensor.data_ptr()
    del tensor
    runtime.pinned((8 << 20,), torch.uint8)
    cudart.cudaHostUnregister.assert_called_once_with(address)


def test_a_refusal_leaves_no_error_behind(calls, monkeypatch, caplog):
    """The runtime reports it again at the thread's next kernel launch; then torch's own allocator is asked."""
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Cudart(801))
    asked = Mock(side_effect=[torch.zeros(1), torch.zeros(3 << 20)])
    launched = []
    runtime = cuda.CudaRuntime(0)
    monkeypatch.setattr(runtime, "empty", lambda *_: SimpleNamespace(fill_=launched.append))
    monkeypatch.setattr(runtime._pinned, "_other", asked)
    runtime.pinned((3 << 20,), torch.uint8)
    assert launched == [0]
    asked.assert_called_once_with((3 << 20,), torch.uint8)
    assert "not supported" in caplog.text


def test_the_driver_is_told_of_many_streams(monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    cuda.prepare()
    assert cuda.os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    cuda.prepare()
    assert cuda.os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


@pytest.mark.parametrize(
    ("setting", "count", "index"),
    [("cpu", 2, None), ("auto", 0, None), ("auto", 2, 0), ("cuda", 2, 0), ("cuda:0", 2, 0), ("cuda:1", 2, 1)],
)
def test_which_gpu(monkeypatch, setting: str, count: int, index: int | None):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert cuda.device_index(setting) == index


@pytest.mark.parametrize("setting", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there(monkeypatch, setting: str):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device: expected a GPU \d, this machine has 0"):
        cuda.device_index(setting)
