"""All that a device of streams needs of CUDA: each method is a call or two into torch.cuda, without decisions.

The tests have runtimes with the same methods that need no GPU: one runs streams in every order that events allow and
detects forbidden accesses, others simply run.

Only `synchronize` waits while models serve, on an event that blocks instead of spinning. No unit runs on the default
stream.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from app.errors import ConfigError

Computation = Callable[[], list[torch.Tensor]]

_GRAPHS_MAY_DRAW = (2, 13)  # before, one state of the random generator served all captures and all other work


def torch_release() -> tuple[int, int]:
    """torch's release, such as (2, 13); that of a build made before a release, too."""
    major, minor, *_ = str(torch.__version__).split(".")
    return int(major), int(minor)


def prepare() -> None:
    """Set CUDA_DEVICE_MAX_CONNECTIONS. Call it before anything initialises the driver, which reads it then.

    Streams beyond the number of hardware queues, 8 by default, would wait for one another.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def set_allocators() -> None:
    """Add settings of torch's allocators to those of the environment. torch 2.11 has neither of the two.

    Without the first, every block of pinned memory is rounded up to a power of two: 513 MiB of slots take a GiB. With
    it larger blocks are not cached either; torch could hand out such a block for another size. Without the second,
    freeing pinned memory after the device has failed ends the process.
    """
    if not hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        return
    settings = torch._C._accelerator_getAllocatorSettings().strip(", ")
    for setting in ("pinned_max_cached_size_mb:64", "pinned_free_catch_all:True"):
        if setting.partition(":")[0] not in settings:
            with suppress(ValueError):  # this torch does not know it
                torch._C._accelerator_setAllocatorSettings(f"{settings},{setting}".lstrip(","))
                settings = f"{settings},{setting}".lstrip(",")


def device_index(device: str) -> int | None:
    """The GPU of a setting (auto, cpu, cuda, cuda:N), None for the CPU. ConfigError if there is none that works."""
    if device == "cpu":
        return None
    prepare()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto" and not count:
        return None
    index = int(device.partition(":")[2] or 0)
    if index >= count:
        built = torch.version.cuda or "no CUDA"
        raise ConfigError(f"device: expected a GPU {index}, this machine has {count} (torch is built for {built})")
    try:
        torch.ones(1, device=f"cuda:{index}").item()  # its first work: it may be full, or for one other process
    except RuntimeError as exc:
        why = str(exc).partition("\n")[0]
        raise ConfigError(f"device: GPU {index}: {why}; see nvidia-smi, or serve with --device cpu") from exc
    return index


def name_of(index: int) -> str:
    """The hardware name of this GPU, as used in profiles."""
    return f"cuda {torch.cuda.get_device_name(index)}"


def memory(index: int) -> tuple[int, int]:
    """Bytes of this GPU's memory: used by all processes, and total; (0, 0) once it has failed."""
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError:
        return 0, 0
    return total - free, total


class CudaRuntime:
    """Any call but `fired` may raise once the device has failed; only `synchronize` and `settle` block.

    Streams are first in, first out, and independent of one another except for events. An event that is recorded again
    counts as a new event for later waits. The lower the number of a stream's priority, the sooner its work runs.

    `name`: the hardware. `device`: where `empty` allocates and modules are moved.
    """

    def __init__(self, index: int) -> None:
        prepare()
        set_allocators()
        self.device = torch.device("cuda", index)
        self.name = name_of(index)
        # Memory is allocated for the current stream. This one runs no unit and is never captured on. One of torch's 32
        # other streams might be used for a capture, and memory allocated meanwhile would belong to its graph.
        self._home = torch.cuda.default_stream(self.device)
        # Kept for ever: torch's allocator of host memory still asks a graph whose capture could not be ended whether a
        # stream belongs to it.
        self._failed: list[torch.cuda.CUDAGraph] = []

    clock = staticmethod(time.perf_counter_ns)  # of the host

    def attach(self) -> None:
        """Each thread calls this before it calls anything else here."""
        torch.cuda.set_device(self.device)

    def settle(self) -> None:
        """Wait for the default stream, where a model's own code may have made its weights: no other stream waits."""
        self._home.synchronize()

    def stream(self, priority: int = 0) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device, priority=priority)  # type: ignore[no-untyped-call]

    def event(self, timed: bool = False) -> torch.cuda.Event:
        """`timed`: it records when it fires, for `elapsed_ns`."""
        return torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        event.record(stream)

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """Work enqueued on the stream from now on waits for the event."""
        stream.wait_event(event)

    def fired(self, event: torch.cuda.Event) -> bool:
        """Whether the event has fired; False once the device has failed. On any thread."""
        with suppress(RuntimeError):
            return bool(event.query())  # type: ignore[no-untyped-call]
        return False

    def synchronize(self, event: torch.cuda.Event) -> None:
        """Block this thread, without the interpreter lock, until the event has fired."""
        event.synchronize()

    def elapsed_ns(self, first: torch.cuda.Event, last: torch.cuda.Event) -> int:
        """Nanoseconds on the device between two timed events that have fired."""
        return round(float(first.elapsed_time(last)) * 1e6)  # from milliseconds

    def enqueue(self, stream: torch.cuda.Stream, work: Callable[[], object]) -> None:
        """Run `work` with its operations enqueued on the stream. It must not raise."""
        with torch.cuda.stream(stream):
            work()

    def graph_pool(self) -> Any:
        """A memory pool for graphs that never run at the same time."""
        return torch.cuda.graph_pool_handle()

    def drawn(self) -> int:
        """A number that changes whenever random numbers are drawn on the device, where that and captures exclude each
        other: before torch 2.13, random work raises while any capture is open. Otherwise always 0.
        """
        old = torch_release() < _GRAPHS_MAY_DRAW
        return torch.cuda.default_generators[self.device.index].get_offset() if old else 0

    def capture(
        self, stream: torch.cuda.Stream, pool: Any, work: Computation, kept: list[Any]
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        """Record the operations of `work` as a graph, without running them. One capture at a time: `WorkerMemory`.

        Returns the function that replays the graph, to be called within `enqueue`, and the tensors that each replay
        writes. Raises what `work` raises; then the remains of the graph are added to `kept`, to be freed with the other
        graphs of its stream.

        `torch.cuda.graph` is not used, because it waits for the whole device and empties the allocator's cache while
        other models serve. Other threads launch, wait for events and allocate meanwhile, hence thread_local.
        """
        with torch.cuda.stream(stream):
            try:
                return self._captured(pool, work, kept)
            except BaseException:
                if torch_release() < _GRAPHS_MAY_DRAW:
                    # The generator believes that the capture goes on, until the next one has ended well.
                    with suppress(Exception):  # the smallest work that makes a graph
                        one = self._captured(self.graph_pool(), lambda: [torch.ones(1, device=self.device)], kept)
                        kept.append(one)
                raise

    def _captured(self, pool: Any, work: Computation, kept: list[Any]) -> tuple[Callable[[], None], list[torch.Tensor]]:
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = work()
            except BaseException:
                with suppress(Exception):  # what `work` raised says why
                    graph.capture_end()
                raise
            graph.capture_end()
        except BaseException:
            self._abandon(graph, pool, kept)
            raise
        return graph.replay, outputs

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any, kept: list[Any]) -> None:
        """A capture has failed. If it was ended, it is a graph that holds its pool until it is destroyed. If CUDA had
        invalidated it, torch's `capture_end` raised early: it did not end the use of the pool, and never releases it.
        """
        index = self.device.index
        try:
            torch._C._cuda_endAllocateToPool(index, pool)
        except Exception:  # it was ended, or never begun
            kept.append(graph)
            return
        self._failed.append(graph)
        held = _PoolHeld()
        weakref.finalize(held, torch._C._cuda_releasePool, index, pool).atexit = False
        kept.append(held)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory."""
        with torch.cuda.stream(self._home):
            return torch.empty(shape, dtype=dtype, device=self.device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device reads and writes by itself."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)


class _PoolHeld:
    """Holds the memory pool of an invalidated capture. A pool that is not held cannot be captured into."""
