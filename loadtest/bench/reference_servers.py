"""What the server is compared with: a bare ASGI echo, a server that does nothing, and a loop of bare torch."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from typing import Any

from loadtest.common.servers import READY_LIMIT_S, Child, Server, ServerError, free_port


def bare_echo() -> Server:
    port = free_port()
    return Server([sys.executable, "-m", "loadtest.bench.echo_app", str(port)], port)


def constant(answer: bytes) -> Server:
    """A server that does nothing: every response has `answer` as its body."""
    port = free_port()
    return Server([sys.executable, "-m", "loadtest.bench.constant", str(port)], port, feed=answer)


class TorchLoop(Child):
    """A loop of bare torch over one batch in its own process, which is idle except while it measures."""

    def __init__(self, model: str, batch: int, threads: int, device: str = "cpu") -> None:
        command = [sys.executable, "-m", "loadtest.bench.torch_loop", model, str(batch), str(threads), device]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until the model is built and warm."""
        self.read(limit_s)

    def rows_per_second(self, seconds: float) -> float:
        """Run the loop for `seconds`."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"%f\n" % seconds)
        self.process.stdin.flush()
        answer = self.read(seconds + 30)
        return float(answer["rows"]) / float(answer["seconds"])

    def read(self, limit_s: float) -> dict[str, Any]:
        """The child's next line, one JSON object. Raises ServerError if none comes in time."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(limit_s) else b""
        if not line:
            raise ServerError(f"the torch loop said nothing within {limit_s:.0f} s: {self.last_output()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
