"""CUDA as a runtime: each method is a call or two into torch.cuda, and nothing is decided here.

Nothing synchronises but `synchronize`, on an event made to block rather than to spin, and nothing happens on the
default stream, which would be a barrier for others. Memory that more than one stream uses lives until all streams have
come past the model's last unit, so the caching allocator never moves it from one stream to another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from app.engine.devices.streams.memory.pinned import PinnedMemory
from app.engine.devices.streams.runtime import Guard
from app.errors import ConfigError

_SUCCESS = 0  # cudaSuccess

Batch = Callable[[], list[torch.Tensor]]


def prepare() -> None:
    """Call before anything asks CUDA a question: the driver reads it when it is initialised.

    Streams beyond the number of hardware queues, 8 unless told otherwise, would wait for one another.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def device_index(device: str) -> int | None:
    """The GPU that a setting means (auto, cpu, cuda, cuda:N), None for the CPU. ConfigError where there is no such."""
    if device == "cpu":
        return None
    prepare()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return 0 if count else None
    index = int(device.partition(":")[2] or 0)
    if index >= count:
        built = torch.version.cuda or "no CUDA"
        raise ConfigError(f"device: expected a GPU {index}, this machine has {count} (torch is built for {built})")
    return index


def name_of(index: int) -> str:
    """The hardware of this GPU, as profiles know it."""
    return f"cuda {torch.cuda.get_device_name(index)}"


class CudaRuntime:
    """Implements streams.runtime.Runtime."""

    _capturing = threading.Lock()  # torch allows one capture at a time in a process

    def __init__(self, index: int, sm_share: float | None = None) -> None:
        """`sm_share`: the part of the SMs that streams of a priority above 0 compute on. ConfigError if that fails."""
        prepare()
        self.device = torch.device("cuda", index)
        self._green = None if sm_share is None else green_context(self.device, sm_share)
        self.name = name_of(index)
        if sm_share is not None:  # batches of the other workers take other times
            self.name += f", best effort on {sm_share:g} of the SMs"
        self.uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        self._home = self.stream()
        self._pinned = PinnedMemory(self._register, self._unregister, _of_torch)
        # Kept for good: torch's allocators may still ask a graph whose capture failed whether a stream belongs to it,
        # and one that is destroyed takes the workspace of its stream with it.
        self._failed: list[torch.cuda.CUDAGraph] = []

    def attach(self) -> None:
        torch.cuda.set_device(self.device)

    def stream(self, priority: int = 0) -> torch.cuda.Stream:
        if priority > 0 and self._green is not None:
            own: torch.cuda.Stream = self._green.Stream()
            return own
        return torch.cuda.Stream(self.device, priority=min(0, priority))  # type: ignore[no-untyped-call]

    def event(self, timed: bool = False) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        event.record(stream)

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def elapsed_ns(self, first: torch.cuda.Event, last: torch.cuda.Event) -> int:
        return round(float(first.elapsed_time(last)) * 1e6)  # from milliseconds

    def enqueue(self, stream: torch.cuda.Stream, work: Callable[[], object]) -> None:
        with torch.cuda.stream(stream):
            work()

    def graph_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(
        self, stream: torch.cuda.Stream, pool: Any, work: Batch, guard: Guard | None = None
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        """By hand, because `torch.cuda.graph` waits for the whole device first and empties the allocator's cache, while
        other models serve. Other threads launch, wait for events and allocate meanwhile, hence thread_local.
        """
        graph = torch.cuda.CUDAGraph()
        with self._capturing, torch.cuda.stream(stream):
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                outputs = work() if guard is None else self._guarded(graph, guard, work)
            except BaseException:
                with suppress(Exception):  # what `work` raised says why
                    graph.capture_end()
                self._abandon(graph, pool)
                raise
            try:
                graph.capture_end()
            except BaseException:
                self._abandon(graph, pool)
                raise
        return graph.replay, outputs

    def _guarded(self, graph: torch.cuda.CUDAGraph, guard: Guard, work: Batch) -> list[torch.Tensor]:
        """Record `work` as the body of an IF node. torch adds the kernel that sets the node's condition from the bool.

        torch captures a body on a stream of its own making, whose address may be another one's later, and with it the
        cuBLAS workspace that graphs keep the address of. So the work goes on a stream that is nobody else's: it forks
        from torch's and joins it again, which is no node of the graph.
        """
        graph.begin_capture_to_if_node(guard.go())  # type: ignore[no-untyped-call]
        try:
            body = torch.cuda.current_stream(self.device)
            guard.stream.wait_stream(body)
            with torch.cuda.stream(guard.stream):
                outputs = work()
            body.wait_stream(guard.stream)
        except BaseException:
            with suppress(Exception):  # what `work` raised says why
                graph.end_capture_to_conditional_node()  # type: ignore[no-untyped-call]
            raise
        graph.end_capture_to_conditional_node()  # type: ignore[no-untyped-call]
        return outputs

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """A capture has failed. Until torch 2.13 its end then leaves the allocator believing that it still goes on."""
        self._failed.append(graph)
        with suppress(Exception):  # where the end came so far, it says that nothing goes on
            torch._C._cuda_endAllocateToPool(self.device.index, pool)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with torch.cuda.stream(self._home):
            return torch.empty(shape, dtype=dtype, device=self.device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._pinned.allocate(shape, dtype)

    def _register(self, address: int, nbytes: int) -> None:
        """Pin pages. RuntimeError with the driver's reason."""
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        result = cudart.cudaHostRegister(address, nbytes, 0)
        if int(result) != _SUCCESS:
            # The runtime keeps the error for the thread's next kernel launch: let one that does not matter find it.
            with suppress(RuntimeError):
                self.empty((1,), torch.uint8).fill_(0)
            raise RuntimeError(cudart.cudaGetErrorString(result))

    def _unregister(self, address: int) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        result = cudart.cudaHostUnregister(address)
        if int(result) != _SUCCESS:
            raise RuntimeError(cudart.cudaGetErrorString(result))


def guards() -> bool:
    """Whether torch captures IF nodes. 2.13 does, built for CUDA 12.4 or later."""
    return hasattr(torch.cuda.CUDAGraph, "begin_capture_to_if_node")


def green_context(device: torch.device, share: float) -> Any:
    """A context with this part of the SMs, as the driver rounds it. ConfigError where there are none."""
    contexts = torch.cuda.green_contexts
    if not contexts.SUPPORTED or not hasattr(contexts.GreenContext, "Stream"):
        raise ConfigError(f"best_effort_sms: torch {torch.__version__} has no streams of green contexts")
    torch.cuda.set_device(device)  # the primary context is to be there first
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    try:
        return contexts.GreenContext.create(num_sms=max(1, int(sms * share)), device_id=device.index)
    except RuntimeError as exc:
        why = str(exc).partition("\n")[0]  # torch may add where in its own code that was
        raise ConfigError(f"best_effort_sms: the driver makes no green context: {why}") from exc


def _of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)
