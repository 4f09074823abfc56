"""uvicorn with our way of stopping.

uvicorn alone closes its listener at once on SIGTERM and exits by the signal. Here the first signal turns readiness
red and goes on serving for a grace period, so that load balancers notice; then the listener closes, what was accepted
is answered, and the exit status is 0. At the drain limit, or at a second signal, what is left is answered 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import struct
import sys
from types import FrameType

import uvicorn

from app import process
from app.api.http import ASGIApp
from app.errors import ConfigError
from app.lifecycle import Lifecycle
from app.protocol import OneWriteProtocol
from app.settings import Settings, cpu_cores

log = logging.getLogger("starling.server")

_ACCEPT_S = 0.1  # for the loop to take what the kernel had accepted
_BPF_RETURN, _SO_ATTACH_FILTER = 0x06, 26  # linux/bpf_common.h, asm-generic/socket.h
_FORCE_AFTER_S = 5  # for answers to be written once everything was answered; then uvicorn cancels


class Server(uvicorn.Server):
    """Stops in two steps. SIGINT, which a person sends, skips the grace."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace_s: float, limit_s: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._grace_s = grace_s
        self._limit_s = limit_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        lifecycle.connections = lambda: len(self.server_state.connections)
        lifecycle.on_failure = self._fail

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        process.name_helper_threads(self._loop, cpu_cores())
        self._listener = sockets[0] if sockets else None
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler: only hands over to the loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop, sig)

    def _stop(self, sig: int) -> None:
        assert self._loop is not None
        if self._lifecycle.closing:
            log.warning("second signal: answering what is left with 503")
            self._give_up("the server was told to stop at once")
            return
        grace = 0.0 if sig == signal.SIGINT else self._grace_s
        log.info("%s: draining, %g s of grace, then at most %g s", signal.Signals(sig).name, grace, self._limit_s)
        self._lifecycle.closing = True
        self._loop.call_later(grace, self._close)
        self._loop.call_later(
            grace + self._limit_s, self._give_up, "the server has stopped before this call was answered"
        )

    def _close(self) -> None:
        """Take the connections that are established already, and no more; then let uvicorn close the listener."""
        assert self._loop is not None
        ignore_new_connections(self._listener)
        self._loop.call_later(_ACCEPT_S, self._exit)

    def _exit(self) -> None:
        self.should_exit = True

    def _give_up(self, why: str) -> None:
        self._lifecycle.abort(why)
        self.should_exit = True

    def _fail(self) -> None:
        self._lifecycle.closing = True
        self.should_exit = True


def ignore_new_connections(listener: socket.socket | None) -> None:
    """Let the kernel drop whatever asks for a new connection, so that the queue of established ones can be emptied.

    Closing a listener resets the connections in its queue, whose clients take them for accepted. A socket filter that
    passes nothing is Linux's way to stop the flow first; elsewhere, and where it is refused, the window stays open.
    """
    if listener is None or sys.platform != "linux":
        return
    reject = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))  # one instruction: return 0 bytes
    program = struct.pack("HP", 1, ctypes.addressof(reject))  # struct sock_fprog, natively aligned
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def bind(host: str, port: int) -> socket.socket:
    """A listening address of our own, so that a port in use is known before models load. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from None
    return sock


def serve(app: ASGIApp, settings: Settings, lifecycle: Lifecycle, sock: socket.socket) -> int:
    """Run until told to stop; the exit status: 0 after a drain, 1 when the engine was lost or the start failed."""
    config = uvicorn.Config(
        app,
        http=OneWriteProtocol,
        interface="asgi3",  # said, because the application is a callable that returns a coroutine
        proxy_headers=False,  # nothing here asks who the client was; the middleware costs a microsecond a call
        log_config=None,
        access_log=settings.access_log,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=int(settings.drain_limit_s) + _FORCE_AFTER_S,
        server_header=False,
        lifespan="on",
    )
    process.switch_threads_often()
    server = Server(config, lifecycle, settings.drain_grace_s, settings.drain_limit_s)
    server.run(sockets=[sock])
    if lifecycle.failed is not None:
        log.error("stopped because %s", lifecycle.failed)
        return 1
    return 0 if server.started else 1
