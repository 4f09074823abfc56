"""Without a GPU: what CudaRuntime asks of torch.cuda is spelt as torch.cuda has it; which GPU a setting means."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock, call, create_autospec

import pytest
import torch

from app.engine.devices.streams import cuda
from app.engine.devices.streams.runtime import Guard
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
    for name, value in (("get_device_name", "H"), ("set_device", None), ("graph_pool_handle", (0, 1))):
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
    replay, got = runtime.capture(stream, runtime.graph_pool(), lambda: outputs)
    assert got is outputs
    replay()
    names = [name for name, _, _ in calls.mock_calls if name.startswith("cudagraph_")]
    assert names == ["cudagraph_.capture_begin", "cudagraph_.capture_end", "cudagraph_.replay"]
    calls.cudagraph_.capture_begin.assert_called_once_with(pool=(0, 1), capture_error_mode="thread_local")
    torch.cuda.stream.assert_called_once_with(stream)


@pytest.fixture
def if_nodes(calls, monkeypatch) -> list[str]:
    """What is captured, in order, and on which stream. A torch without CUDA knows no IF nodes, hence no signatures."""
    log: list[str] = []
    current = ["primary"]

    class Graph:
        def capture_begin(self, **given) -> None:
            assert given["capture_error_mode"] == "thread_local"
            log.append("begin")

        def begin_capture_to_if_node(self, go) -> None:
            log.append(f"if {go}")
            current.append("torch's")

        def end_capture_to_conditional_node(self) -> None:
            log.append("end if")
            current.remove("torch's")

        def capture_end(self) -> None:
            log.append("end")

        def replay(self) -> None:
            log.append("replay")

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other) -> None:
            log.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def using(stream):
        current.append(getattr(stream, "name", "primary"))
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", using)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(current[-1]))
    log.append(Stream("own"))
    return log


def test_what_is_guarded_is_the_body_of_an_if_node(if_nodes):
    """It forks from torch's own stream for that onto ours, and joins it again before the body ends."""
    runtime, own = cuda.CudaRuntime(0), if_nodes.pop()

    def work() -> list[torch.Tensor]:
        if_nodes.append(torch.cuda.current_stream(runtime.device).name)
        return []

    replay, _ = runtime.capture(runtime.stream(), (0, 1), work, Guard(lambda: "go", own))
    replay()
    assert if_nodes == [
        "begin", "if go", "own waits for torch's", "own", "torch's waits for own", "end if", "end", "replay",
    ]  # fmt: skip


def test_what_fails_behind_a_guard_ends_both_captures(if_nodes, monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", Mock(), raising=False)
    runtime, own = cuda.CudaRuntime(0), if_nodes.pop()

    def work() -> list[torch.Tensor]:
        raise ValueError("reads a value")

    with pytest.raises(ValueError, match="reads a value"):
        runtime.capture(runtime.stream(), (0, 1), work, Guard(lambda: "go", own))
    assert if_nodes[-2:] == ["end if", "end"]
    assert len(runtime._failed) == 1


@pytest.fixture
def green(calls, monkeypatch) -> Mock:
    """A torch that has green contexts, on a GPU of 132 SMs."""
    context = Mock()
    create = create_autospec(torch.cuda.green_contexts.GreenContext.create, return_value=context)
    monkeypatch.setattr(torch.cuda.green_contexts, "SUPPORTED", True)
    monkeypatch.setattr(torch.cuda.green_contexts.GreenContext, "create", create)
    properties = SimpleNamespace(uuid="u", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    context.create = create
    return context


def test_streams_below_the_others_compute_on_their_share(calls, green):
    runtime = cuda.CudaRuntime(1, 0.25)
    green.create.assert_called_once_with(num_sms=33, device_id=1)
    assert runtime.stream(1) is green.Stream.return_value
    runtime.stream(0)
    runtime.stream(-1)
    assert green.Stream.call_count == 1
    asked = [made.args[2]["priority"] for made in calls.made.mock_calls if made.args[0] == "Stream"]
    assert asked == [0, 0, -1]  # the first is the runtime's own


def test_a_driver_that_makes_no_green_context_is_named(green):
    green.create.side_effect = RuntimeError("cuda driver too old\nException raised from create")
    with pytest.raises(ConfigError, match=r"best_effort_sms: the driver makes no green context: cuda driver too old\Z"):
        cuda.CudaRuntime(0, 0.5)


@pytest.mark.parametrize("where", ["capture_begin", "work", "capture_end"])
def test_a_capture_that_fails_is_ended_for_the_allocator_too_and_its_graph_kept(calls, monkeypatch, where: str):
    """What `work` raises is raised, whatever the end of a capture that has been invalidated says."""
    ended = Mock(side_effect=RuntimeError("not currently recording"))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ended, raising=False)
    runtime = cuda.CudaRuntime(1)

    def fail() -> list[torch.Tensor]:
        raise ValueError("reads a value")

    stream, work, message = runtime.stream(), fail if where == "work" else list, "reads a value"
    if where != "work":
        message = "invalidated"
        made = torch.cuda.CUDAGraph

        def broken(*args, **kwargs):
            graph = made(*args, **kwargs)
            getattr(graph, where).side_effect = RuntimeError("capture was invalidated")
            return graph

        monkeypatch.setattr(torch.cuda, "CUDAGraph", broken)
    with pytest.raises((ValueError, RuntimeError), match=message):
        runtime.capture(stream, (0, 7), work)
    ended.assert_called_once_with(1, (0, 7))
    assert len(runtime._failed) == 1


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
