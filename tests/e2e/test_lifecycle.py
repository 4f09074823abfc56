"""The end of a server: told twice it says so to what is left. What it does when told once is in test_stress.py.

A second signal is tried in an interpreter of its own, which ends with the server, as a Ctrl-C is in test_json_logs.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from background import eventually

from .server import PATIENCE_S, ROOT, Reply, Server
from .wire import TYPED, post, tensor


def in_flight(server: Server, threads: ThreadPoolExecutor, count: int) -> Callable[[], list[Reply]]:
    """Calls at a gate that stays shut; the function waits for their answers."""
    assert server.gate is not None
    calls = [threads.submit(server.infer, "gate", [[2]])]
    server.gate.wait()
    calls += [threads.submit(server.infer, "gate", [[600 + n]]) for n in range(count - 1)]
    eventually(lambda: server.waiting("gate") == count - 1)
    return lambda: [call.result(PATIENCE_S) for call in calls]


def test_a_second_signal(start: Callable[..., Server], threads: ThreadPoolExecutor) -> None:
    server = start("gate", flags=("--drain-grace-s", "20"), fresh=True)
    answers = in_flight(server, threads, 20)
    server.tell()
    server.line("draining")
    eventually(lambda: server.tell() or any("second signal" in line for line in server.lines))  # half a second later
    found = answers()
    assert {(answer.status, answer.closes) for answer in found} == {(503, True)}
    assert all("retry-after" in answer.headers and "told to stop" in answer.error for answer in found)
    assert server.ended() == 0  # though the model still stands there


def test_a_terminal_that_closes(start: Callable[..., Server], threads: ThreadPoolExecutor) -> None:
    """Its SIGHUP drains as SIGTERM does: what was accepted is answered."""
    server = start("gate", flags=("--drain-grace-s", "0"))
    answers = in_flight(server, threads, 1)
    server.tell(signal.SIGHUP)
    server.line("draining")
    assert server.gate is not None
    server.gate.open()
    assert [answer.status for answer in answers()] == [200]
    assert server.ended() == 0


def test_told_to_stop_before_it_serves(tmp_path: Path) -> None:
    """It leaves nothing behind. As the first process of a container it would not even end without a handler."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "model.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "app", "serve", str(tmp_path / "net"), "--port", "0"]
    env = {**os.environ, "TMPDIR": str(tmp_path / "scratch")}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert list((tmp_path / "scratch").glob("starling-*")) == []


def test_a_dead_worker(start: Callable[..., Server], threads: ThreadPoolExecutor) -> None:
    """A model that ends its thread: every call has an answer, and the process ends so that somebody starts it anew."""
    server = start("dying", "gate")
    held = threads.submit(server.infer, "gate", [[2]])
    assert server.gate is not None
    server.gate.wait()
    fatal = threads.submit(server.infer, "dying", [[-1]])
    eventually(lambda: server.waiting("dying") == 1)
    behind = [threads.submit(server.infer, "gate", [[700 + n]]) for n in range(5)]
    eventually(lambda: server.waiting("gate") == 5)
    server.gate.open()
    assert held.result(PATIENCE_S).status == 200
    answers = [call.result(PATIENCE_S) for call in (fatal, *behind)]
    assert {answer.status for answer in answers} == {503}
    assert all("device is lost" in answer.error for answer in answers)
    assert server.ended() == 1
    server.line("a model that leaves")
    server.line("stopped because")


def test_a_model_that_forks(start: Callable[..., Server]) -> None:
    """Its children end when it terminates them, keep no connection open, and are no reason not to end."""
    server = start("forking")
    with server.socket() as client:
        client.sendall(post("/v2/models/forking/infer", tensor(1, 1, [-2]), {**TYPED, "Connection": "close"}))
        assert client.recv(12) == b"HTTP/1.1 200"
        while client.recv(65536):  # ends when nobody has the connection
            pass
    assert server.stop() == 0


def test_a_hung_worker(start: Callable[..., Server], threads: ThreadPoolExecutor) -> None:
    server = start("gate", flags=("--hang-floor-s", "0.5"))
    answers = in_flight(server, threads, 3)
    eventually(lambda: server.get("/v2/health/live").status == 503)
    for path, name in (("/livez", "live"), ("/v2/health/ready", "ready")):
        told = server.get(path).json()
        assert told.pop(name) is False
        assert "rows of 'gate' has run" in told["reason"]
    assert server.gate is not None
    server.gate.open()
    assert [answer.status for answer in answers()] == [200] * 3
    assert server.get("/v2/health/live").json() == {"live": True}


def test_nobody_reads_its_output(start: Callable[..., Server]) -> None:
    """The log, a model that prints and a hung batch's stacks fill the pipe. The server works on, and ends with 0."""
    server = start("gate", "talking", flags=("--access-log", "--hang-floor-s", "0.5"))
    server.stop_reading()
    for _ in range(300):
        assert server.post("/v2/models/talking/infer", tensor(1, 1, [1]), TYPED).status == 200
    with ThreadPoolExecutor(1) as pool:
        answers = in_flight(server, pool, 1)
        eventually(lambda: server.get("/v2/health/live").status == 503)
        assert server.gate is not None
        server.gate.open()
        assert [answer.status for answer in answers()] == [200]
    assert server.get("/v2/health/live").status == 200
    server.tell()
    assert server.ended() == 0
