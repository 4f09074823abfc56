"""The threads that enqueue work on the streams of a device, message by message.

One launcher serves all models: several would fight for the interpreter lock. So a model that blocks its thread would
hold up all others, and some do: `.item()`, `.cpu()` or a branch on a value wait for the device in the midst of a batch,
and rows without a largest length are put together in host memory first. Such a model gets a launcher of its own, which
launches its units and nothing else; see `loading.py` for how it is found. Messages for it go through the shared
launcher all the same, so that they stay behind the copies of their rows.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from app.engine.streams.runtime import Runtime

Message = tuple[Callable[..., None], tuple[Any, ...]]


class Launcher:
    """Calls the functions that it is sent, in order. Any thread may send.

    `failed` is called with what a function raises, which does not end the thread; `ended` at the thread's end.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        failed: Callable[[BaseException], None],
        ended: Callable[[Launcher], None],
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

    def next(self) -> bool:
        """Handle one message, waiting for it; False at the end."""
        message = self.messages.get()
        if message is None:
            self._ended(self)
            return False
        function, args = message
        try:
            function(*args)
        except BaseException as exc:
            self._failed(exc)
        return True

    def _main(self) -> None:
        self._runtime.attach()
        with torch.inference_mode():
            while self.next():
                pass


class Launchers:
    """The launcher that all models share, and those that models have of their own.

    `start` starts a thread; `failed` is told what a message raised; `ended` is called when the last of them has ended.
    """

    def __init__(
        self,
        runtime: Runtime,
        start: Callable[[threading.Thread], None],
        failed: Callable[[BaseException], None],
        ended: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._start = start
        self._failed = failed
        self._ended = ended
        self._lock = threading.Lock()
        self.shared = Launcher("launcher", runtime, failed, self._one_ended)
        self.live = [self.shared]

    def start(self) -> None:
        self._start(self.shared.thread)

    def own(self, name: str) -> Launcher:
        """A launcher for one model, which has begun. It ends with its model, or with the shared one."""
        launcher = Launcher(f"launcher of {name}", self._runtime, self._failed, self._one_ended)
        with self._lock:
            self.live.append(launcher)
        self._start(launcher.thread)
        return launcher

    def _one_ended(self, launcher: Launcher) -> None:
        """Nobody sends to a model's own launcher but the shared one: so that one ends first."""
        with self._lock:
            self.live.remove(launcher)
            left = list(self.live)
        if launcher is self.shared:
            for other in left:
                other.end()
        if not left:
            self._ended()
