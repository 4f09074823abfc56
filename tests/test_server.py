"""Stopping in two steps, without a network: who is told what, and when."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
import uvicorn

from app.errors import ConfigError
from app.http.tls import Certificate
from app.lifecycle import Lifecycle
from app.server import Server, bind, has_waiting, ignore_new_connections, listeners

CERTIFICATES = Path(__file__).parent / "certificates"
_IPV6 = "".join(path.read_text() for path in [Path("/proc/net/if_inet6")] if path.is_file())


async def app(scope: object, receive: object, send: object) -> None:
    """Answers nothing."""


class Clock:
    """The part of a loop that a server stops by: timers are kept, and called when the test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.timers: list[tuple[float, object, tuple[object, ...]]] = []

    def is_closed(self) -> bool:
        return False

    def time(self) -> float:
        return self.now_s

    def call_soon_threadsafe(self, callback: object, *args: object) -> None:
        callback(*args)  # type: ignore[operator]

    def call_later(self, delay: float, callback: object, *args: object) -> None:
        self.timers.append((delay, callback, args))

    def fire(self, index: int) -> float:
        delay, callback, args = self.timers[index]
        callback(*args)  # type: ignore[operator]
        return delay


class Stopping:
    """A server that is told to stop but has never listened."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        self.aborted: list[str] = []
        self.lifecycle.abort = self.aborted.append
        self.clock = Clock()
        self.server = Server(uvicorn.Config(app, log_config=None), self.lifecycle, grace_s=3, limit_s=30)
        self.server._loop = self.clock  # type: ignore[assignment]

    def tell(self, number: int) -> None:
        self.server.handle_exit(number, None)


@pytest.fixture
def stopping() -> Stopping:
    return Stopping()


def test_a_first_signal_turns_readiness_red_and_waits(stopping: Stopping) -> None:
    stopping.tell(signal.SIGTERM)
    assert stopping.lifecycle.closing
    assert stopping.lifecycle.ready() == "the server is shutting down"
    assert stopping.lifecycle.live() is None
    assert not stopping.server.should_exit
    assert stopping.clock.fire(0) == 3
    assert not stopping.server.should_exit  # who is connected already is still taken in
    assert stopping.clock.fire(2) < 1
    assert (stopping.server.should_exit, stopping.aborted) == (True, [])
    assert stopping.clock.fire(1) == 33
    assert len(stopping.aborted) == 1


def test_a_second_signal_gives_up(stopping: Stopping) -> None:
    stopping.tell(signal.SIGTERM)
    stopping.tell(signal.SIGTERM)  # the same one: `timeout` sends it to the process, and to its group
    assert not stopping.server.should_exit
    stopping.clock.now_s += 0.6
    stopping.tell(signal.SIGTERM)
    assert stopping.server.should_exit
    assert stopping.aborted == ["the server was told to stop at once"]
    assert not stopping.server.force_exit  # answers are still written


async def test_a_signal_before_the_start_is_not_lost(stopping: Stopping, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        stopping.tell(signal.SIGTERM)
        raise InterruptedError

    monkeypatch.setattr(stopping.server.config, "load", load)
    del stopping.server._loop
    with pytest.raises(InterruptedError):
        await stopping.server.serve()
    await asyncio.sleep(0)
    assert stopping.lifecycle.closing


async def test_a_client_that_begins_no_handshake_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that sends no request: a probe may need the file that it holds."""
    monkeypatch.setattr("app.server._HANDSHAKE_S", 0.05)
    tls = Certificate(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", ssl_context_factory=lambda config, default: tls.context
    )
    config.load()
    server = Server(config, Lifecycle(), grace_s=0, limit_s=0)
    server._loop = asyncio.get_running_loop()
    server.lifespan = config.lifespan_class(config)
    sock = bind("127.0.0.1", 0)
    await server.startup([sock])
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    writer.close()
    await server.shutdown([sock])


def test_a_lost_engine_ends_it(stopping: Stopping) -> None:
    stopping.lifecycle.fail("worker 0 has died")
    assert stopping.server.should_exit
    assert stopping.lifecycle.live() == "worker 0 has died"


class Unread:
    is_cut = False

    def cut(self) -> None:
        self.is_cut = True


@pytest.mark.parametrize("lost", [False, True])
def test_who_does_not_read_the_last_answer_is_not_waited_for(stopping: Stopping, lost: bool) -> None:
    """Nor left to uvicorn, which cancels what is left and logs it as errors."""
    connection = Unread()
    stopping.server.server_state.connections.add(connection)  # type: ignore[arg-type]
    if lost:
        stopping.lifecycle.fail("worker 0 has died")
    else:
        stopping.tell(signal.SIGTERM)
        stopping.clock.fire(1)  # at the drain limit
    assert not connection.is_cut
    assert stopping.clock.fire(-1) == 2
    assert connection.is_cut


def test_a_hung_batch_is_told_once_with_its_stack_and_no_drain_waits_for_it(stopping, caplog) -> None:
    (look,) = stopping.lifecycle.tick_callbacks
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, name="worker-0")
    thread.start()
    try:
        look()
        assert caplog.messages == []
        stopping.lifecycle.stuck = lambda: "a batch of 2 rows of 'm' has run 9 s"
        look()
        look()
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("a batch of 2 rows of 'm' has run 9 s; where its threads are:\n")
        assert "\nworker-0:\n" in caplog.messages[0]
        assert "in wait" in caplog.messages[0]
    finally:
        ends.set()
        thread.join()
    assert stopping.aborted == []
    stopping.tell(signal.SIGTERM)
    look()
    assert stopping.aborted == [
        "the server has stopped before this call was answered: a batch of 2 rows of 'm' has run 9 s"
    ]
    assert stopping.server.should_exit


def test_bind() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        sock.listen()
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)
    with bind("127.0.0.1", 0) as sock, bind("127.0.0.1", sock.getsockname()[1]) as late:  # both, as none listens yet
        for one in listeners(sock, 1)[1:]:
            one.close()
        with pytest.raises(ConfigError, match=r"cannot listen on 127.0.0.1:\d+: Address already in use"):
            listeners(late, 1)
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1:80"):
        bind("203.0.113.1", 80)
    for host in ("", "a\udcff"):  # the empty one would be every interface
        with pytest.raises(ConfigError, match=r"cannot listen on a?\ufffd?:80: "):
            bind(host, 80)


@pytest.mark.skipif(" lo\n" not in _IPV6, reason="addresses of IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]", "six.example"])
def test_bind_ipv6(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = socket.getaddrinfo("::1", 0, type=socket.SOCK_STREAM)
    if host == "six.example":  # a name with no other address
        monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **kinds: addresses)
    with bind(host, 0) as sock:
        assert sock.getsockname()[0] == "::1"


@pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")
def test_a_turn_of_the_loop_accepts_many() -> None:
    """Else a probe waits behind all who came before it, for a turn each."""
    uvloop = pytest.importorskip("uvloop")
    made: list[int] = []
    turn, clients = 0, [socket.socket() for _ in range(64)]

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(turn)
            transport.close()

    async def accept_all(sock: socket.socket) -> None:
        nonlocal turn
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Accepted, sock=one) for one in listeners(sock, len(clients))]
        while len(made) < len(clients):
            turn += 1
            await asyncio.sleep(0)
        for server in servers:
            server.close()
            await server.wait_closed()

    with bind("127.0.0.1", 0) as sock:
        sock.listen(len(clients))
        for client in clients:
            client.connect(sock.getsockname())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(accept_all(sock))
    for client in clients:
        client.close()
    assert len(set(made)) <= 5


def test_a_listener_that_ignores_new_connections() -> None:
    with bind("127.0.0.1", 0) as sock:
        sock.listen()
        sock.settimeout(10)
        with socket.create_connection(sock.getsockname(), 10) as early:
            ignore_new_connections(sock)
            with pytest.raises(TimeoutError):
                socket.create_connection(sock.getsockname(), 0.2)
            early.sendall(b"still here")
            assert has_waiting(sock)
            with sock.accept()[0] as taken:  # who stood in the queue is not lost
                assert taken.recv(100) == b"still here"
            assert not has_waiting(sock)
    assert not has_waiting(sock)  # which is closed
    assert not has_waiting(None)
    ignore_new_connections(None)


@pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")
def test_it_does_not_end_before_the_queue_is_empty(stopping: Stopping) -> None:
    """An event loop that got no processor has accepted nobody in a tenth of a second."""
    with bind("127.0.0.1", 0) as sock:
        sock.listen()
        stopping.server._listener = sock
        with socket.create_connection(sock.getsockname(), 10):
            stopping.tell(signal.SIGINT)
            assert stopping.clock.fire(0) == 0  # a Ctrl-C skips the grace
            stopping.clock.fire(2)
            assert not stopping.server.should_exit
            sock.accept()[0].close()
            stopping.clock.fire(3)
            assert stopping.server.should_exit
