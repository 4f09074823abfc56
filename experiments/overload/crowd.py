"""A crowd of clients in one process, and a prober beside it: the load of `experiments.overload.resending`.

A client in C that resends at once would be a faster load, but not every machine has one, and none tells how long
refused clients waited. This one works on `epoll` by itself: an answer costs it some 10 us. It reads a job as JSON from
stdin and writes what it counted as JSON to stdout.
"""

from __future__ import annotations

import errno
import heapq
import json
import select
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from loadtest.common.paths import LOOPBACK

#: What a client does: sends again at once, whatever the answer; waits as `Retry-After` says; or leaves after so long.
RESENDS, WAITS, LEAVES = "resends", "waits", "leaves"
_LEAVES_S = 2.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: no port stays in TIME_WAIT
_READ = 1 << 16
_TICK_S = 0.02  # how often clients that wait or leave are looked at
_OPENED_AT_ONCE = 256


@dataclass(frozen=True)
class Job:
    """`connections` clients that send `request` for `seconds` after a warm-up; `fresh`: each on a new connection.

    `rate`: requests a second of clients that come, are answered once and go; 0 for a closed loop of `connections`.
    """

    port: int
    request: str
    connections: int
    seconds: float
    kind: str = RESENDS
    fresh: bool = False
    warm_s: float = 2.0
    rate: float = 0.0


@dataclass
class Counted:
    """Answers by status within the job's seconds, failures by kind, and latencies in milliseconds."""

    status: Counter[int] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    left: int = 0
    answered_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)


class Client:
    """One connection; `since` is when its request was sent, None while it waits to send the next."""

    __slots__ = ("connecting", "since", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.connecting = True
        self.since: float | None = None


class Crowd:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._text = job.request.encode("latin-1")
        self._poll = select.epoll()
        self._clients: dict[int, Client] = {}
        self._later: list[tuple[float, int, Client | None]] = []  # who sends or leaves when
        self._number = 0
        self._begins = 0.0
        self.ends = float("inf")  # on `time.perf_counter`; with the job's seconds at the latest
        self.counted = Counted()

    def run(self) -> Counted:
        job = self._job
        started = time.perf_counter()
        self._begins = started + job.warm_s
        ends, opened, came = self._begins + job.seconds, 0, 0.0
        while (now := time.perf_counter()) < min(ends, self.ends):
            if job.rate:
                came = (now - started) * job.rate
            for _ in range(_OPENED_AT_ONCE):  # not all in one go: the backlog of the listener has an end
                if opened >= (came if job.rate else job.connections) or len(self._clients) >= job.connections:
                    break
                self._open()
                opened += 1
            for descriptor, events in self._poll.poll(_TICK_S if opened >= job.connections else 0.001, 4096):
                client = self._clients.get(descriptor)
                if client is not None:
                    self._look(client, events)
            self._due(time.perf_counter())
        for client in list(self._clients.values()):
            self._close(client)
        return self.counted

    def _open(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((LOOPBACK, self._job.port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self.counted.failed[errno.errorcode.get(code, "connect")] += 1
            return
        client = self._clients[sock.fileno()] = Client(sock)
        self._poll.register(sock.fileno(), select.EPOLLOUT)
        client.since = time.perf_counter()  # of a new connection, the request begins with it

    def _look(self, client: Client, events: int) -> None:
        if client.connecting:
            code = client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._lose(client, errno.errorcode.get(code, "connect"))
                return
            client.connecting = False
            self._poll.modify(client.sock.fileno(), select.EPOLLIN)
            self._send(client, client.since or 0.0)
            return
        try:
            data = client.sock.recv(_READ)
        except OSError as error:
            self._lose(client, errno.errorcode.get(error.errno or 0, "recv"))
            return
        if data:
            self._answered(client, data)
        elif client.since is None:  # it closed between two requests
            self._close(client)
            self._open()
        else:
            self._lose(client, "closed")

    def _send(self, client: Client, now: float) -> None:
        try:
            client.sock.send(self._text)
        except OSError as error:
            self._lose(client, errno.errorcode.get(error.errno or 0, "send"))
            return
        client.since = now
        if self._job.kind == LEAVES:
            self._put(now + _LEAVES_S, client)

    def _answered(self, client: Client, data: bytes) -> None:
        now, job, since = time.perf_counter(), self._job, client.since
        if since is None or not data.startswith(b"HTTP/1.1 "):
            return  # the rest of an answer
        client.since = None
        status = int(data[9:12])
        if now >= self._begins:
            self.counted.status[status] += 1
            waits = self.counted.answered_ms if status == 200 else self.counted.refused_ms
            waits.append((now - since) * 1e3)
        closes = job.fresh or job.rate > 0 or b"connection: close" in data
        if closes:
            self._close(client)
        if job.rate and (status == 200 or job.kind == LEAVES):
            return
        if job.kind == WAITS and status != 200:
            found = data.lower().partition(b"retry-after: ")[2].partition(b"\r\n")[0]
            self._put(now + float(found or 1), None if closes else client)
        elif closes:
            self._open()
        else:
            self._send(client, now)

    def _put(self, when: float, client: Client | None) -> None:
        self._number += 1
        heapq.heappush(self._later, (when, self._number, client))

    def _due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            when, _, client = heapq.heappop(self._later)
            if client is None:
                self._open()
            elif self._job.kind == WAITS and client.since is None and client.sock.fileno() >= 0:
                self._send(client, now)
            elif self._job.kind == LEAVES and client.since is not None and client.since + _LEAVES_S <= when:
                self._close(client)
                if now >= self._begins:
                    self.counted.left += 1
                if not self._job.rate:
                    self._open()

    def _lose(self, client: Client, why: str) -> None:
        self.counted.failed[why] += 1
        self._close(client)
        if not self._job.rate:
            self._open()

    def _close(self, client: Client) -> None:
        descriptor = client.sock.fileno()
        if descriptor >= 0:
            self._clients.pop(descriptor, None)
            client.sock.close()
        client.since = None


def percentile(ordered: list[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def main() -> None:
    counted = Crowd(Job(**json.load(sys.stdin))).run()
    answered, refused = sorted(counted.answered_ms), sorted(counted.refused_ms)
    fields = {
        "status": counted.status, "failed": counted.failed, "left": counted.left,
        "p50_ms": percentile(answered, 0.5), "p99_ms": percentile(answered, 0.99),
        "refused_p50_ms": percentile(refused, 0.5), "refused_p99_ms": percentile(refused, 0.99),
    }  # fmt: skip
    json.dump(fields, sys.stdout)


if __name__ == "__main__":
    main()
