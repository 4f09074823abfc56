"""What measurements run on: a runtime of the engine, a clock on its streams, and counters of its memory.

`CudaPlatform` is a GPU. `HostPlatform` is the runtime of the tests, whose streams are threads: it exists to try the
measurements where there is no GPU, and its figures mean nothing.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from app.engine.devices.streams.runtime import Runtime
from loadtest.common.paths import ROOT


class Platform(Protocol):
    """The hardware that is measured. All byte counts are of device memory."""

    runtime: Runtime
    rehearsed: bool
    gate: Any  #: the stream on which a measurement begins and ends

    def mark(self, stream: Any) -> Any:
        """Record a point in time on the stream."""
        ...

    def between(self, first: Any, last: Any) -> float:
        """Milliseconds from one point to a later one; waits for the later one."""
        ...

    def settle(self) -> None:
        """Wait for the device and free unused memory."""
        ...

    def allocated(self) -> int: ...
    def peak(self) -> int:
        """The most memory reserved since the process began."""
        ...

    def pools(self) -> tuple[int, int]:
        """Memory of the graphs' own pools: allocated to tensors, and reserved."""
        ...

    def drop_workspaces(self) -> None:
        """Free the matrix library's workspaces; no graph may be replayed afterwards."""
        ...

    def used(self) -> int:
        """Memory used by all processes, as the driver counts it."""
        ...

    def facts(self) -> dict[str, str]: ...


class CudaPlatform:
    rehearsed = False

    def __init__(self) -> None:
        from app.engine.devices.streams.cuda import CudaRuntime

        self.runtime: Runtime = CudaRuntime(0)
        self.runtime.attach()
        self.gate = self.runtime.stream()

    def mark(self, stream: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def between(self, first: Any, last: Any) -> float:
        last.synchronize()
        return float(first.elapsed_time(last))

    def settle(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def allocated(self) -> int:
        return torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_reserved()

    def pools(self) -> tuple[int, int]:
        own = [part for part in torch.cuda.memory_snapshot() if tuple(part["segment_pool_id"]) != (0, 0)]
        return sum(part["allocated_size"] for part in own), sum(part["total_size"] for part in own)

    def drop_workspaces(self) -> None:
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()

    def used(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free

    def facts(self) -> dict[str, str]:
        properties = torch.cuda.get_device_properties(0)
        name, sms, gib = properties.name, properties.multi_processor_count, properties.total_memory / 2**30
        convolutions, products = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        return {
            "gpu": f"{name}, {sms} SMs, {gib:.0f} GiB",
            "CUDA": f"torch is built for {torch.version.cuda}; cuDNN {torch.backends.cudnn.version()}{_driver()}",
            "fp32": f"TF32 in convolutions: {_yes(convolutions)}; in matrix products: {_yes(products)}",
        }


class HostPlatform:
    """The tests' runtime on the CPU, whose streams are threads."""

    rehearsed = True

    def __init__(self) -> None:
        spec = importlib.util.spec_from_file_location("starling_runtimes", ROOT / "tests" / "runtimes.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look up their own module
        spec.loader.exec_module(module)
        self.runtime: Any = module.HostRuntime()
        self.gate = self.runtime.stream()

    def mark(self, stream: Any) -> Any:
        passed: list[float] = []
        self.runtime.enqueue(stream, lambda: passed.append(time.perf_counter()))
        event = self.runtime.event()
        self.runtime.record(event, stream)
        return event, passed

    def between(self, first: Any, last: Any) -> float:
        self.runtime.synchronize(last[0])
        return (last[1][0] - first[1][0]) * 1e3

    def settle(self) -> None:
        gc.collect()

    def allocated(self) -> int:
        found = {}
        for one in gc.get_objects():
            if type(one) in (torch.Tensor, torch.nn.Parameter):
                storage = one.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        return sum(found.values())

    def peak(self) -> int:
        return self.allocated()

    def pools(self) -> tuple[int, int]:
        return 0, 0

    def drop_workspaces(self) -> None:
        pass

    def used(self) -> int:
        return self.allocated()

    def facts(self) -> dict[str, str]:
        return {"gpu": "none: a rehearsal on the CPU, whose figures mean nothing"}


@contextmanager
def open_platform(rehearsed: bool) -> Iterator[Platform]:
    """Open the platform that this process measures on."""
    if not rehearsed:
        yield CudaPlatform()
        return
    host = HostPlatform()
    with host.runtime:
        yield host


def together(platform: Platform, works: Sequence[tuple[Any, Callable[[], object]]]) -> float:
    """Milliseconds from before the first work is enqueued until all works have ended on their streams.

    Includes the launches: one thread enqueues all works, as the engine's launcher does.
    """
    runtime, gate = platform.runtime, platform.gate
    begin = platform.mark(gate)
    opened = runtime.event()
    runtime.record(opened, gate)
    for stream, _ in works:
        runtime.wait(stream, opened)
    for stream, work in works:
        runtime.enqueue(stream, work)
    for stream in {id(stream): stream for stream, _ in works}.values():
        ended = runtime.event()
        runtime.record(ended, stream)
        runtime.wait(gate, ended)
    return platform.between(begin, platform.mark(gate))


def _yes(on: bool) -> str:
    return "yes" if on else "no"


def _driver() -> str:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetDriverVersion()
    except Exception as exc:  # another package's errors, and a library that may be missing
        return f"; driver not known ({type(exc).__name__})"
    return f"; driver {version if isinstance(version, str) else version.decode()}"
