"""A FakeRuntime whose operators do what CUDA's do: a model's Python runs when its work is enqueued, and each operator
when its stream gets there.

Memory of the device belongs to the stream that it was made for. As soon as nobody holds a tensor, that stream may use
its memory again: here it writes garbage there. What reads it on another stream must have done so before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from graphs import looks, memory_of, on_another_thread, tensors_of, waits
from runtimes import Batch, FakeRuntime, FakeStream
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_SPOILT = 0xB3  # of each byte


class DeferredRuntime(FakeRuntime):
    """`waits`: how often an operator has made its thread wait for the device."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.waits = 0
        self._blocks: dict[int, Any] = {}  # by the storage of a tensor on the device; None: of a graph
        self._now: FakeStream

    def enqueue(self, stream: FakeStream, work: Callable[[], None]) -> None:
        self._check()
        assert not stream.graphs, "work on a stream whose workspace graphs use that may be running"
        self._now = stream
        with torch.inference_mode(), _Looks(self), _Operators(self):
            work()

    def push(self, run: Callable[[], object]) -> None:
        def alone() -> None:
            with on_another_thread():
                run()

        self._now.work.append(("run", alone))

    def catch_up(self) -> None:
        """Wait until the stream has done all its work, as for a copy to memory that is not pinned."""
        self.waits += 1
        with on_another_thread():
            event = self.event()
            self.record(event, self._now)
            self.synchronize(event)

    def capture(
        self, stream: FakeStream, pool: int, work: Batch, kept: list[Any]
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        replay, outputs = super().capture(stream, pool, work, kept)
        self._blocks |= dict.fromkeys(map(memory_of, self.latest.memory))
        return lambda: self.push(replay), outputs

    # memory

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self._check()
        with on_another_thread():
            return self.made(torch.empty(shape, dtype=dtype, device="meta"), None)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with on_another_thread():
            self.pinnings += 1
            return super().empty(shape, dtype)

    def made(self, like: torch.Tensor, stream: FakeStream | None) -> torch.Tensor:
        """A tensor on the device; None: of no stream that runs anything."""
        block = np.full(max(1, like.untyped_storage().nbytes()), _SPOILT, np.uint8)
        tensor = _over(block, like)
        self._blocks[memory_of(tensor)] = block
        weakref.finalize(tensor.untyped_storage(), self._freed, memory_of(tensor), block, stream).atexit = False
        return tensor

    def _freed(self, memory: int, block: Any, stream: FakeStream | None) -> None:
        del self._blocks[memory]
        if stream is not None:
            stream.work.append(("run", lambda: block.fill(_SPOILT)))

    def on_device(self, tensor: torch.Tensor) -> bool:
        return memory_of(tensor) in self._blocks

    def address(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """The tensor, without holding its memory on the device."""
        block = self._blocks.get(memory_of(tensor))
        if block is None:
            return lambda: tensor
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        at = tensor.storage_offset()
        return lambda: _over(block, like, at)


def _over(block: Any, like: torch.Tensor, at: int = 0) -> torch.Tensor:
    whole = torch.from_numpy(block[: len(block) // like.itemsize * like.itemsize]).view(like.dtype)
    return whole.as_strided(like.shape, like.stride(), at)


class _Looks(TorchFunctionMode):
    def __init__(self, runtime: DeferredRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if looks(func) and not self._runtime.captures and self._runtime.on_device(args[0]):
            self._runtime.catch_up()
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __init__(self, runtime: DeferredRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        runtime, given = self._runtime, (args, kwargs or {})
        if runtime.captures:
            return func(*args, **given[1])
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **given[1])
        tensors = tensors_of(given)
        on_device = [tensor for tensor in tensors if runtime.on_device(tensor)]
        is_view = not func._schema.is_mutable and all(one.alias_info for one in func._schema.returns)
        if is_view or not (on_device or (not tensors and given[1].get("device") is not None)):
            return func(*args, **given[1])
        if waits(func, args):
            runtime.catch_up()
            return tree_map(lambda one: self._as_it_is(one) if isinstance(one, torch.Tensor) else one, func(*args))
        if func is torch.ops.aten.copy_.default and len(on_device) < 2 and not (len(args) > 2 and args[2]):
            runtime.catch_up()
            return func(*args)
        return self._deferred(func, given)

    def _deferred(self, func: Any, given: Any) -> Any:
        runtime = self._runtime
        places = tree_map(lambda one: runtime.address(one) if isinstance(one, torch.Tensor) else one, given)

        def run() -> list[torch.Tensor]:
            args, kwargs = tree_map(lambda one: one() if callable(one) else one, places)
            return tensors_of(func(*args, **kwargs))

        if func._schema.is_mutable:
            runtime.push(run)
            written = [
                given[1].get(one.name, given[0][at] if at < len(given[0]) else None)
                for at, one in enumerate(func._schema.arguments)
                if one.alias_info is not None and one.alias_info.is_write
            ]
            return written[0] if len(written) == 1 else tuple(written)
        args, kwargs = tree_map(_without_values, given)
        made = tree_map(lambda one: runtime.made(one, runtime._now), func(*args, **kwargs))
        targets = [runtime.address(one) for one in tensors_of(made)]

        def write() -> None:
            for target, value in zip(targets, run(), strict=True):
                target().copy_(value)

        runtime.push(write)
        return made

    def _as_it_is(self, value: torch.Tensor) -> torch.Tensor:
        return self._runtime.made(value, self._runtime._now).copy_(value)


def _without_values(one: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
    return torch.device("meta") if isinstance(one, torch.device) else one
