"""A thread that enqueues work on the streams of a device, message by message."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from app.engine.devices.streams.runtime import Runtime

Message = tuple[Callable[..., None], tuple[Any, ...]]


class Launcher:
    """Calls the functions that it is sent, in order. Any thread may send.

    `failed` is told of what a function raises, which does not end the thread; `ended` is called at the thread's end.
    """

    def __init__(
        self, name: str, runtime: Runtime, failed: Callable[[BaseException], None], ended: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._failed = failed
        self._ended = ended
        self.messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # A daemon: a device that hangs must not keep a process alive that has been told to end.
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def send(self, function: Callable[..., None], *args: Any) -> None:
        self.messages.put((function, args))

    def end(self) -> None:
        """End the thread after what it has."""
        self.messages.put(None)

    def handle(self, message: Message) -> None:
        function, args = message
        try:
            function(*args)
        except BaseException as exc:
            self._failed(exc)

    def _main(self) -> None:
        self._runtime.attach()
        with torch.inference_mode():
            while (message := self.messages.get()) is not None:
                self.handle(message)
                del message  # it may hold a model that has been unloaded
        self._ended()
