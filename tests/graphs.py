"""A graph as CUDA has it, on a CPU: a model's operators are noted once, and each replay runs these on the same memory.

Python does not run again at a replay. Memory that the batch has not made itself is read where it was: once it has been
freed, there is garbage. To look at values fails, as on a stream that is captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

GARBAGE = -77  # what memory holds before anything was written to it
_LOOKS = ("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class NotPermitted(RuntimeError):
    def __init__(self) -> None:
        super().__init__("operation not permitted when stream is capturing")


class Graph:
    """The operators of `work`, which have not run yet, and the `outputs` that each replay writes."""

    def __init__(self, work: Callable[[], list[torch.Tensor]]) -> None:
        noted = _Noted()
        with torch.inference_mode(), _NoLooks(), noted:
            self.outputs = work()
        self._nodes, self.memory = noted.nodes, noted.made
        self.spoil()

    def spoil(self) -> None:
        """Whatever uses the same pool of memory may do so between two replays."""
        for tensor in self.memory:
            tensor.fill_(GARBAGE if tensor.dtype.is_signed else 1)

    def replay(self) -> None:
        with torch.inference_mode():
            for function, given, made in self._nodes:
                args, kwargs = tree_map(lambda one: one.now() if isinstance(one, _Place) else one, given)
                for target, value in zip(made, tensors_of(function(*args, **kwargs)), strict=False):
                    target.copy_(value)


@contextmanager
def on_another_thread() -> Iterator[None]:
    """What is done here is no part of a capture."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class _Place:
    """A tensor whose memory is somebody else's: its address."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = weakref.ref(tensor.untyped_storage())
        self._nbytes, self._dtype = tensor.untyped_storage().nbytes(), tensor.dtype
        self._view = (tensor.storage_offset(), tensor.shape, tensor.stride())

    def now(self) -> torch.Tensor:
        storage = self._storage()
        if storage is None:
            garbage = torch.full((self._nbytes // self._dtype.itemsize,), GARBAGE).to(self._dtype)
            storage = garbage.untyped_storage()
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._view)


class _NoLooks(TorchFunctionMode):
    """Reading a tensor on a CPU is no operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if looks(func):
            raise NotPermitted
        return func(*args, **(kwargs or {}))


class _Noted(TorchDispatchMode):
    """`nodes`: each operator, its arguments, and the tensors that it has made. `made`: all of these."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[tuple[Any, Any, list[torch.Tensor]]] = []
        self.made: list[torch.Tensor] = []
        self._own: set[int] = set()  # the memory of `made`

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        if waits(func, args):
            raise NotPermitted
        before = {memory_of(tensor) for tensor in tensors_of(given)} | self._own
        result = func(*args, **given[1])
        made = [tensor for tensor in tensors_of(result) if memory_of(tensor) not in before]
        self.made += made
        self._own |= {memory_of(tensor) for tensor in made}
        if made or func._schema.is_mutable:  # else a view
            self.nodes.append((func, tree_map(self._noted, given), made))
        return result

    def _noted(self, one: Any) -> Any:
        return _Place(one) if isinstance(one, torch.Tensor) and memory_of(one) not in self._own else one


def looks(func: Any) -> bool:
    """Whether a function of torch reads the values of a tensor."""
    return getattr(func, "__name__", "") in _LOOKS


def waits(func: Any, args: Any) -> bool:
    """Whether an operator makes its thread wait for the device, as its result's shape depends on values."""
    if func.overloadpacket is torch.ops.aten.index:
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return bool(_WAITS.intersection(func.tags))


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]
