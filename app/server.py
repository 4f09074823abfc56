"""uvicorn's server, with a graceful shutdown in two steps.

On SIGTERM uvicorn alone closes its listener at once and exits by the signal. Here the readiness probe fails first, and
the server keeps serving for a grace period, so that load balancers notice. Then the listener closes, every accepted
request is answered, and the exit status is 0. At the drain limit, or at a second signal, the remaining requests are
answered 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import select
import signal
import socket
import struct
import sys
from collections.abc import Generator
from functools import partial
from operator import itemgetter
from types import FrameType
from typing import Any

import uvicorn

from app import process
from app.errors import as_config_error
from app.http.asgi import HttpApp
from app.http.connection.connection import HttpProtocol
from app.http.connection.idle_connections import IdleConnections
from app.http.tls import Certificate
from app.lifecycle import Lifecycle
from app.machine import helper_threads
from app.settings import Settings

log = logging.getLogger("starling.server")

_ACCEPTED = 16  # connections accepted per turn of the event loop
_ACCEPT_S = 0.1  # time for the event loop to accept the connections in the kernel's queue
_BPF_RETURN, _SO_ATTACH_FILTER = 0x06, 26  # linux/bpf_common.h, asm-generic/socket.h
#: If the event loop has not ticked for so long, some code holds the interpreter lock for ever, and the process ends:
#: without an orchestrator no probe would end it. Imports and unpickling of large models hold the lock far shorter.
_STANDSTILL_NS = 60 * 10**9
#: Signals within so long are one: `timeout`, systemd and terminals send theirs to a whole group of processes, of which
#: some, as make, uv and shell scripts with a trap, send it on.
_SAME_S = 0.5
_STOPPED = "the server has stopped before this call was answered"
_LAST_ANSWERS_S = 2  # after the drain limit, for the last answers to be written; ending busy workers takes as long
#: For a client's part of a TLS handshake. Until then nothing counts the connection, and asyncio's 60 s are so long that
#: clients which send nothing take all files that may be open, and probes are not accepted.
_HANDSHAKE_S = 10
_FORCE_AFTER_S = 5  # after the drain limit: by then uvicorn, which logs a traceback each, has no task to cancel


class Server(uvicorn.Server):
    """Stops in two steps. SIGINT, which a person sends, skips the grace period."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace_s: float, limit_s: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._grace_s = grace_s
        self._limit_s = limit_s
        self._loop: asyncio.AbstractEventLoop  # from `capture_signals` on
        self._listener: socket.socket | None = None
        self._reported_stuck = False
        self._told_s = 0.0  # when it was told to stop
        lifecycle.connections = lambda: len(self.server_state.connections)
        lifecycle.malformed = lambda: HttpProtocol.malformed
        lifecycle.on_failure = self._fail
        lifecycle.tick_callbacks.append(self._check_progress)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        self._loop = asyncio.get_running_loop()  # before signals are taken: none may be lost
        with super().capture_signals():
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        process.name_helper_threads(self._loop, helper_threads())
        self._listener = sockets[0] if sockets else None
        if self.config.ssl is not None:
            limit_s = min(_HANDSHAKE_S, self.config.timeout_keep_alive)
            self._loop.create_server = partial(self._loop.create_server, ssl_handshake_timeout=limit_s)  # type: ignore[method-assign]
        await super().startup(sockets)

    def open_connections(self) -> list[Any]:
        """Their sockets, as the event loop has them."""
        return list(filter(None, (one.transport.get_extra_info("socket") for one in self.server_state.connections)))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler, so it only schedules `_stop` on the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop, sig)

    def _stop(self, sig: int) -> None:
        if self._lifecycle.closing:
            if self._loop.time() > self._told_s + _SAME_S:
                log.warning("second signal: the requests that are left are answered 503")
                self._give_up("the server was told to stop at once")
            return
        self._told_s = self._loop.time()
        grace = 0.0 if sig == signal.SIGINT else self._grace_s
        log.info("%s: draining, %g s of grace, then at most %g s", signal.Signals(sig).name, grace, self._limit_s)
        self._lifecycle.closing = True
        self._loop.call_later(grace, self._close)
        self._loop.call_later(grace + self._limit_s, self._give_up, _STOPPED)

    def _close(self) -> None:
        """Accept the established connections, but no new ones; then let uvicorn close the listener."""
        ignore_new_connections(self._listener)
        self._loop.call_later(_ACCEPT_S, self._exit)

    def _exit(self) -> None:
        """Repeat until no connection waits to be accepted: on a busy machine the event loop may not have run yet."""
        if has_waiting(self._listener) and not self.should_exit:
            self._loop.call_later(_ACCEPT_S, self._exit)
        else:
            self.should_exit = True

    def _check_progress(self) -> None:
        """Runs at each tick of the rate monitor. Logs a hung batch; while draining, gives up on it."""
        stuck = self._lifecycle.stuck()
        if stuck is not None and not self._reported_stuck:
            stacks = process.thread_stacks("worker", "launch")
            log.error("%s; where its threads are:\n%s", stuck, stacks, extra={"lines": True})
        self._reported_stuck = stuck is not None
        if stuck is not None and self._lifecycle.closing and not self.should_exit:
            self._give_up(f"{_STOPPED}: {stuck}")

    def _give_up(self, why: str) -> None:
        self._lifecycle.abort(why)
        self._leave()

    def _fail(self) -> None:
        self._lifecycle.closing = True
        self._leave()

    def _leave(self) -> None:
        """Stop when the last answers are written, without waiting for clients that do not read theirs."""
        self.should_exit = True
        self._loop.call_later(_LAST_ANSWERS_S, self._cut)

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.cut()  # type: ignore[union-attr]  # each is an HttpProtocol


def ignore_new_connections(listener: socket.socket | None) -> None:
    """Let the kernel drop new connections, so that the queue of established ones can be emptied.

    Closing a listener resets the connections in its queue, which clients consider open. On Linux a socket filter that
    rejects everything stops new ones first. On other systems, and if the filter is refused, such a connection may still
    be reset.
    """
    if listener is None or sys.platform != "linux":
        return
    reject = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))  # one instruction: return 0 bytes
    program = struct.pack("HP", 1, ctypes.addressof(reject))  # struct sock_fprog, natively aligned
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def has_waiting(listener: socket.socket | None) -> bool:
    """Whether connections wait to be accepted. Always False if new ones are not ignored: they might never end."""
    if listener is None or sys.platform != "linux" or listener.fileno() < 0:
        return False
    poller = select.poll()  # unlike select.select, takes descriptors above 1,023
    poller.register(listener, select.POLLIN)
    return bool(poller.poll(0))


def bind(host: str, port: int) -> socket.socket:
    """Bind the address before models load, so that a port in use is known at once. Raises ConfigError.

    The host may be a name, of which IPv4 addresses go first, or an address in brackets, as URLs have it.
    """
    with as_config_error(f"cannot listen on {host}:{port}"), contextlib.ExitStack() as stack:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, *_, address = min(found, key=itemgetter(0))
        sock = stack.enter_context(socket.socket(family))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        stack.pop_all()
    return sock


def listeners(sock: socket.socket, backlog: int) -> list[socket.socket]:
    """The socket, which listens from now on, and duplicates of it: the event loop accepts one connection per listener
    and turn. Raises ConfigError: another server may have bound the port, too, and listen by now.

    With one listener, hundreds of clients that open a connection per request would delay a probe by as many turns.
    """
    host, port, *_ = sock.getsockname()
    with as_config_error(f"cannot listen on {host}:{port}"):
        sock.listen(backlog)  # uvloop, which does it too, hides the error: a server would be ready, and never reached
    return [sock, *(sock.dup() for _ in range(_ACCEPTED - 1))]


def _config(app: HttpApp, settings: Settings, tls: Certificate | None) -> uvicorn.Config:
    http = partial(
        HttpProtocol,
        take=app.fast_path.take,
        body_timeout_s=settings.body_timeout_s,
        idle=IdleConnections(settings.keep_alive_s, settings.max_connections),
        hold=app.resources.bodies.add,
    )
    return uvicorn.Config(
        app,
        http=http,  # type: ignore[arg-type]  # uvicorn calls it like the class
        interface="asgi3",  # given, because uvicorn mistakes a plain function that returns a coroutine for ASGI 2
        proxy_headers=False,  # nothing here uses the client's address; the middleware costs a microsecond a request
        log_config=None,
        access_log=False,  # its own, see app/http/layers.py
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=int(settings.drain_limit_s) + _FORCE_AFTER_S,
        server_header=False,
        lifespan="on",
        backlog=settings.max_connections,  # room in the kernel's queue for all of them
        ws="none",  # offers of websockets are declined like any other
        ssl_context_factory=None if tls is None else lambda config, default: tls.context,
    )


def serve(
    app: HttpApp, settings: Settings, lifecycle: Lifecycle, sock: socket.socket, tls: Certificate | None = None
) -> int:
    """Run until told to stop. The exit status is 0 after a drain, 1 if the engine was lost or the start failed."""
    if tls is not None:
        lifecycle.tick_callbacks.append(tls.reread)
        lifecycle.certificate_expires = lambda: tls.expires
    if (most := process.allow_open_files(settings.max_connections)) is not None:
        log.warning(
            "at most %d files may be open: fewer than --max-connections %d need", most, settings.max_connections
        )
    crash_output = process.never_blocking(2)  # else a process whose stderr nobody reads would not end
    lifecycle.tick_callbacks.append(process.end_at_standstill(_STANDSTILL_NS, crash_output))
    server = Server(_config(app, settings, tls), lifecycle, settings.drain_grace_s, settings.drain_limit_s)
    # A crash in native code leaves the stacks, which name the model of the batch that ran.
    faulthandler.enable(crash_output)
    sockets = listeners(sock, settings.max_connections)
    process.let_children_end(lambda: [one.fileno() for one in [*sockets, *server.open_connections()]])
    server.run(sockets=sockets)
    if lifecycle.failed is not None:
        log.error("stopped because %s", lifecycle.failed)
    return 0 if server.started and lifecycle.failed is None else 1
