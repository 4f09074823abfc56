"""What a device of streams is made of: the few primitives of CUDA that it needs, as a protocol.

`cuda.py` implements it for a GPU. The tests have runtimes that need no GPU: one that runs streams in every order that
events allow and notices what must not happen, and others that simply run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

log = logging.getLogger("starling.engine")


class Runtime(Protocol):
    """Any call may raise once the device has failed; only `synchronize` blocks.

    Streams are first in, first out, and independent of one another but for events. An event that is recorded again is a
    new event to those who wait for it from then on.
    """

    name: str  # the hardware
    uuid: str  # of this very piece of it; "" where it has none
    device: torch.device  # where `empty` allocates, and modules go

    def attach(self) -> None:
        """Each thread calls this before it calls anything else here."""
        ...

    def stream(self, priority: int = 0) -> Any:
        """A stream; the lower the number, the sooner its work is taken up."""
        ...

    def event(self, timed: bool = False) -> Any:
        """`timed`: it notes when it fires, for `elapsed_ns`."""
        ...

    def record(self, event: Any, stream: Any) -> None: ...

    def wait(self, stream: Any, event: Any) -> None:
        """What is enqueued on the stream from now on waits for the event."""
        ...

    def synchronize(self, event: Any) -> None:
        """Block this thread, without the interpreter lock, until the event has fired."""
        ...

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """Nanoseconds on the device between two timed events that have fired."""
        ...

    def enqueue(self, stream: Any, work: Callable[[], None]) -> None:
        """Do `work` on the stream. It must not raise."""
        ...

    def graph_pool(self) -> Any:
        """Memory that graphs which never run at the same time may share."""
        ...

    def capture(
        self, stream: Any, pool: Any, work: Callable[[], list[torch.Tensor]], kept: list[Any]
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        """Record what `work` does as a graph, without doing it.

        Returns what replays the graph, to be called within `enqueue`, and the tensors that each replay writes. Raises
        what `work` raises; what is left of the graph then is added to `kept`, to go with the others of its stream.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device reads and writes by itself."""
        ...


class Health:
    """Whether the device works. `lost`: why not, once it has failed. Any thread may say so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lost: str | None = None

    def lose(self, exc: BaseException) -> None:
        if self.lost is None:
            self.lost = f"{type(exc).__name__}: {exc}"
            log.error("%s: the device has failed: %s", self._name, self.lost)


def perform(runtime: Runtime, stream: Any, work: Callable[[], object]) -> None:
    """Run something on a stream and wait for it. Raises what it raises. For loading and measuring only."""
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as exc:
            errors.append(exc)

    event = runtime.event()
    runtime.enqueue(stream, attempt)
    runtime.record(event, stream)
    runtime.synchronize(event)
    if errors:
        raise errors[0]
