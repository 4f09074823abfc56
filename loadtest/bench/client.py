"""A closed-loop HTTP/1.1 load client on bare asyncio Protocols: as little Python per request as there can be.

It is a process of its own (`python -m loadtest.bench.client`, a load as JSON on stdin, the result as JSON on stdout),
because a client that shares the server's interpreter lock measures itself. `run` starts that process.

Only what a benchmark's server sends is understood: one response per request, with a Content-Length. The loop is
closed; an open-loop sender would be another caller of `Connection.send`.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import gc
import json
import subprocess
import sys
from array import array
from collections import Counter
from time import perf_counter_ns

from .load import GRACE_S, LOOPBACK, ROOT, Load, LoadError, Request, Result, percentile

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
START_S = 20.0  # the interpreter's own start on a busy machine


class Run:
    """The state that the connections of one load share: its answers, its failures, its end."""

    def __init__(self, load: Load, finished: asyncio.Future[None]) -> None:
        self.load = load
        self.payload = load.request.encode(load.port)
        self.capture = f"\r\n{load.capture.lower()}:".encode() if load.capture else b""
        self.latencies_ns = array("q")
        self.captured: list[tuple[float, str]] = []
        self.failed: Counter[str] = Counter()
        self.finished = finished
        self.waiting: set[Connection] = set()
        self.stopped_ns = 0

    def stop(self) -> None:
        """No further requests; answers that come later are not counted."""
        if not self.stopped_ns:
            self.stopped_ns = perf_counter_ns()

    def leave(self, connection: Connection, failure: str = "") -> None:
        """A connection is through, in order or with a failure; none is opened again, so failures stay few."""
        if connection not in self.waiting:
            return
        self.waiting.remove(connection)
        if failure:
            self.failed[failure] += 1
        if not self.waiting:
            self.stop()
            if not self.finished.done():
                self.finished.set_result(None)

    def result(self, started_ns: int) -> Result:
        ordered = [ns / 1e6 for ns in sorted(self.latencies_ns)]
        return Result(
            requests=len(ordered),
            seconds=(self.stopped_ns - started_ns) / 1e9,
            p50_ms=percentile(ordered, 50),
            p90_ms=percentile(ordered, 90),
            p99_ms=percentile(ordered, 99),
            failed=dict(self.failed),
            captured=self.captured,
        )


class Connection(asyncio.Protocol):
    """One keep-alive connection: send, wait for the whole answer, send again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.transport: asyncio.Transport
        self.sent_ns = 0
        self.pending = b""
        self.need = 0  # length of the answer now arriving, head included; 0: its head is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.run.waiting.add(self)

    def send(self, now_ns: int) -> None:
        self.sent_ns = now_ns
        self.transport.write(self.run.payload)

    def data_received(self, data: bytes) -> None:
        if self.pending:
            data = self.pending + data
        if not self.need:
            self.need = answer_length(data)
        if self.need < 0:
            self.leave("answer without Content-Length")
        elif not self.need or len(data) < self.need:
            self.pending = data
        else:
            complete = len(data) == self.need
            self.pending, self.need = b"", 0
            if complete:
                self.answered(data)
            else:
                self.leave("bytes after the answer")

    def answered(self, data: bytes) -> None:
        run, now_ns = self.run, perf_counter_ns()
        if run.stopped_ns:
            self.leave()
            return
        if data[9:12] != b"200":
            self.leave(f"status {data[9:12].decode('latin-1')}")
            return
        if run.load.answer is not None and data[data.index(HEAD_END) + 4 :] != run.load.answer:
            self.leave("wrong answer")
            return
        run.latencies_ns.append(now_ns - self.sent_ns)
        if run.capture and len(run.captured) < run.load.max_captured:
            run.captured.append(((now_ns - self.sent_ns) / 1e6, header(data, run.capture)))
        if len(run.latencies_ns) >= run.load.max_requests:
            run.stop()
            self.leave()
            return
        self.send(now_ns)

    def leave(self, failure: str = "") -> None:
        self.run.leave(self, failure)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.run.leave(self, "connection lost")


def answer_length(data: bytes) -> int:
    """Length of the response that `data` begins with; 0 while its head is incomplete, -1 if it does not say."""
    end = data.find(HEAD_END)
    if end < 0:
        return 0
    head = data[: end + 2].lower()
    at = head.find(LENGTH)
    if at < 0:
        return -1
    at += len(LENGTH)
    return end + 4 + int(head[at : head.index(b"\r\n", at)])


def header(data: bytes, name: bytes) -> str:
    """The value of header `name` (lower case, between line break and colon inclusive) of a response; "" if absent."""
    head = data[: data.index(HEAD_END) + 2]
    at = head.lower().find(name)
    if at < 0:
        return ""
    at += len(name)
    return head[at : head.index(b"\r\n", at)].decode("latin-1").strip()


async def drive(load: Load) -> Result:
    """Run `load` to its end in this loop. Raises OSError where a connection cannot be opened."""
    loop = asyncio.get_running_loop()
    run = Run(load, loop.create_future())
    for _ in range(load.connections):
        await loop.create_connection(lambda: Connection(run), LOOPBACK, load.port)
    started_ns = perf_counter_ns()
    for connection in tuple(run.waiting):
        connection.send(started_ns)
    timer = loop.call_later(load.seconds, run.stop)
    try:
        await asyncio.wait_for(run.finished, load.seconds + GRACE_S)
    except TimeoutError:
        for connection in tuple(run.waiting):
            run.leave(connection, f"no answer {GRACE_S:g} s after the end")
            connection.transport.abort()
    finally:
        timer.cancel()
    return run.result(started_ns)


def run(load: Load) -> Result:
    """Run `load` in a process of its own and wait for it. Raises LoadError if that process fails."""
    job = dataclasses.asdict(load)
    job["request"]["body"] = base64.b64encode(load.request.body).decode()
    job["answer"] = None if load.answer is None else base64.b64encode(load.answer).decode()
    command = [sys.executable, "-m", "loadtest.bench.client"]
    limit_s = load.seconds + GRACE_S + START_S
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, timeout=limit_s, cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"the load client did not end within {limit_s:g} s") from error
    if done.returncode:
        raise LoadError(f"the load client failed: {done.stderr.strip()[-500:]}")
    fields = json.loads(done.stdout)
    fields["captured"] = [(latency_ms, value) for latency_ms, value in fields["captured"]]
    return Result(**fields)


def parse_job(text: str) -> Load:
    """The load that `run` wrote."""
    job = json.loads(text)
    request = job.pop("request")
    headers = tuple((name, value) for name, value in request["headers"])
    body = base64.b64decode(request["body"])
    answer = job.pop("answer")
    return Load(
        **job,
        request=Request(request["name"], request["path"], headers, body),
        answer=None if answer is None else base64.b64decode(answer),
    )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed; else asyncio's, and the ceiling in the report says what that costs."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def main() -> None:
    load = parse_job(sys.stdin.read())
    gc.disable()  # everything kept is bounded by the load, and a collection would look like the server's latency
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        result = runner.run(drive(load))
    json.dump(dataclasses.asdict(result), sys.stdout)


if __name__ == "__main__":
    main()
