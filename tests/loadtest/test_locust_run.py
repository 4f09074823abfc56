"""`make load` as a user runs it: its report, its exit status, and that nothing it started is left, however it ends.

Most runs are against a small server of our own making, which answers wrongly where a test wants it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from background import QuietHandler, ended, eventually, running

from loadtest.run_locust import ROOT, parse, server_flags

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
QUICK = ("--serve=--policy no_wait",)  # a server that solves no control tables, which takes seconds
TENSOR = {"datatype": "FP32", "shape": [-1, 4]}
METADATA = {"name": "echo", "inputs": [{**TENSOR, "name": "x"}], "outputs": [{**TENSOR, "name": "y"}]}


class EchoServer(ThreadingHTTPServer):
    """A V2 server of `echo`, JSON only: the status of its n-th inference, and what becomes of the right data."""

    daemon_threads = True  # a client that is gone may have left its connection open

    def __init__(
        self, status: Callable[[int], int] = lambda n: 200, data: Callable[[list[float]], list[float]] = list
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.data = status, data
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.numbers = itertools.count(1)
        self.count = 0


class Handler(QuietHandler):
    server: EchoServer

    def get(self) -> None:
        known = self.path == "/v2/models/echo"
        self.tell(200 if known else 404, METADATA if known else {"error": f"{self.path} is not known"})

    def post(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/predict/echo":  # an image
            self.tell(200, {"y": [0.0]})
            return
        (tensor,) = json.loads(body)["inputs"]
        self.server.count = number = next(self.server.numbers)
        status = self.server.status(number)
        good = {"outputs": [{**tensor, "name": "y", "data": self.server.data(tensor["data"])}]}
        self.tell(status, good if status == 200 else {"error": "no"})

    def tell(self, status: int, value: Any) -> None:
        self.answer(status, json.dumps(value).encode(), X_Batch_Size="3")


class LoadRun:
    """`python -m loadtest.run_locust` as a child, and what it and its children say."""

    def __init__(self, out: Path, *arguments: str) -> None:
        command = [sys.executable, "-u", "-m", "loadtest.run_locust", "--out", str(out), *arguments]
        self.out = out
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read on to a line like this."""
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line like {pattern!r} in:\n{self.said}")

    def children(self) -> list[int]:
        """Process ids of the children that there are now."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def interrupt_locust(self) -> int:
        """End Locust, and not its parent, as a run's time does; the exit status of all, which is Locust's."""
        for pid in self.children():
            if b"locustfile" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Read to the end; the exit status. A run that does not end is terminated, which is another status."""
        limit = threading.Timer(PATIENCE_S, self.process.terminate)
        limit.start()
        try:
            self.lines += self.process.stdout.readlines()
            return self.process.wait(PATIENCE_S)
        finally:
            limit.cancel()
            limit.join()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def results(self) -> Any:
        return json.loads((self.out / "results.json").read_text())

    def requests(self) -> dict[str, Any]:
        """Locust's statistics by name."""
        return {" ".join(row["name"].split()): row for row in self.results()["requests"]}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # it ends its children itself
            self.process.wait(PATIENCE_S)
        self.process.stdout.close()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., LoadRun]]:
    """Start a run: `load("--users", "2")`. Ended after the test, whatever happened."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(closing(LoadRun(tmp_path / "out", *arguments)))


def template(report: Path) -> str:
    """The data that Locust's HTML report draws."""
    found = re.search(r"window\.templateArgs = (.*)", report.read_text(encoding="utf-8"))
    assert found, "the report holds no data"
    return found[1]


def test_every_payload_against_a_real_server(load: Callable[..., LoadRun]) -> None:
    run = load("--users", "3", "--duration", "1h", "--payload", "all", "--rows", "uniform:1:3", "--pace", "50", *QUICK)
    url = run.until(r"server ready at (\S+)")[1]
    run.until("All users spawned")
    eventually(lambda: answered_by(url, "digits") > 100)
    assert run.interrupt_locust() == 0, run.said
    requests = run.requests()
    kinds = ["digits V2 JSON", "digits V2 binary", "digits image"]
    answered = {kind: requests[kind]["requests"] for kind in kinds}
    assert min(answered.values()) > 0
    assert requests["Aggregated"]["failures"] == 0
    assert requests["Aggregated"]["requests"] == sum(answered.values())  # batches are not counted twice
    for kind in kinds:
        by_bracket = [row["requests"] for name, row in requests.items() if name.startswith(f"{kind}, batch")]
        assert sum(by_bracket) == answered[kind]
    report = template(run.out / "report.html")
    assert all(kind in report for kind in kinds)
    assert "digits image, batch" in report
    assert "draining" in (run.out / "server.log").read_text()  # the server was asked to end, and did


def test_a_wrong_answer_fails_the_run(load: Callable[..., LoadRun]) -> None:
    with running(EchoServer(data=lambda data: [0.0] * len(data))) as server:
        run = load("--host", server.url, "--model", "echo", "--users", "1", "--duration", "1h")
        run.until("All users spawned")
        eventually(lambda: server.count > 2)
        assert run.interrupt_locust() == 1
    assert "wrong answer: output y: expected the values that were sent" in run.said
    echo = run.requests()["echo V2 JSON"]
    assert echo["failures"] == echo["requests"] > 0
    assert not [name for name in run.requests() if "batch" in name]  # of right answers only
    assert (run.out / "report.html").exists()


def test_a_ramp_ends_by_itself_and_says_where(load: Callable[..., LoadRun]) -> None:
    """Every other call is refused, so the first level breaks; an overload is what a ramp looks for, and no error."""
    with running(EchoServer(status=lambda n: 200 if n % 2 else 429)) as server:
        run = load(
            "--host", server.url, "--model", "echo", "--users", "4", "--duration", "1h", "--shape", "ramp",
            "--hold", "3", "--max-failures", "0.1", "--max-p99-ms", "60000", "--pace", "100",
        )  # fmt: skip
        assert run.end() == 0, run.said
    assert re.search(r"^ramp: broke at [\d.]+ requests/s with 1 user: \d+\.\d% failed", run.said, re.MULTILINE)
    assert run.results()["ramp"] in run.said


OWN = """
from locust import FastHttpUser, LoadTestShape, task
from loadtest.locustfile import ImageUser, JsonUser

class UntilAllAreCounted(LoadTestShape):
    def tick(self):
        counted = {name for name, _ in self.runner.stats.entries}
        return None if {"/aside", "echo V2 JSON", "echo image"} <= counted else (3, 3)

class Aside(FastHttpUser):
    @task
    def ask(self):
        self.client.get("/v2/models/echo", name="/aside")

class Mine(JsonUser): ...
class Pictures(ImageUser): ...
del ImageUser, JsonUser
Aside.host = Mine.host = Pictures.host = "URL"
"""


def test_a_locustfile_of_ones_own_has_a_shape_users_and_hosts_of_its_own(tmp_path: Path) -> None:
    with running(EchoServer()) as server:
        (tmp_path / "own.py").write_text(OWN.replace("URL", server.url))
        command = ("-m", "locust", "-f", tmp_path / "own.py", "--headless", "--only-summary", "--model", "echo")
        run = ended(sys.executable, *command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr


def test_an_interrupted_run_leaves_a_report_and_no_process(load: Callable[..., LoadRun]) -> None:
    run = load("--users", "2", "--duration", "1h", "--model", "echo", *QUICK)
    url = run.until(r"server ready at (\S+)")[1]
    run.until("All users spawned")
    eventually(lambda: answered_by(url, "echo"))
    children = run.children()
    assert len(children) == 2
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.said
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    with pytest.raises(ConnectionRefusedError):
        fetch(url, "GET", "/")
    assert "echo V2 JSON" in template(run.out / "report.html")
    assert run.requests()["echo V2 JSON"]["requests"]


def test_a_run_of_nohup_outlives_its_terminal(load: Callable[..., LoadRun]) -> None:
    with running(EchoServer()) as server:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            run = load("--host", server.url, "--model", "echo", "--users", "1", "--duration", "1h")
        finally:
            signal.signal(signal.SIGHUP, before)
        run.until("All users spawned")
        run.process.send_signal(signal.SIGHUP)
        eventually(lambda: server.count > 2)
        assert run.interrupt_locust() == 0, run.said


def fetch(url: str, method: str, path: str, form: dict[str, str] | None = None) -> Any:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        body = None if form is None else urlencode(form)
        connection.request(method, path, body, {"Content-Type": "application/x-www-form-urlencoded"} if form else {})
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return json.loads(data) if data[:1] in b"{[" else data.decode()
    finally:
        connection.close()


def test_the_page_runs_the_shape_that_it_is_told(load: Callable[..., LoadRun]) -> None:
    with running(EchoServer()) as server:
        run = load("--host", server.url, "--model", "echo", "--web")
        page = run.until(r"Starting web interface at (http://[\d.:]+)")[1]
        for text in ("JsonUser", "BinaryUser", "ImageUser", "Steps", "Diurnal", "Spike", "Ramp", "max_p99_ms"):
            assert text in eventually(lambda: fetch(page, "GET", "/")), text
        form = {"user_count": "2", "spawn_rate": "2", "run_time": "1h", "host": f"{server.url}/", "pace": "50"}
        told = fetch(page, "POST", "/swarm", {**form, "user_classes": "JsonUser", "shape_class": "Spike"})
        assert told["message"] == "Swarming started using shape class 'Spike'"
        run.until("Shape test updating to 1 users")  # a fifth of two
        eventually(lambda: server.count > 2)
        fetch(page, "POST", "/stop")
        found = fetch(page, "GET", "/stats/requests")
        assert found["fail_ratio"] == 0
        assert found["stats"][-1]["num_requests"] > 0
        for users in (1, 2):  # the second joins the first, with the host as it was typed
            fetch(page, "POST", "/swarm", {**form, "user_count": str(users), "user_classes": "JsonUser"})
            eventually(lambda users=users: fetch(page, "GET", "/stats/requests")["user_count"] == users)
        before = server.count
        eventually(lambda: server.count > before + 20)
        assert fetch(page, "GET", "/exceptions")["exceptions"] == []
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    assert "echo V2 JSON" in template(run.out / "report.html")


def answered_by(url: str, model: str) -> int:
    """Rows that a server has answered for a model."""
    (found,) = fetch(url, "GET", f"/v2/models/{model}/stats")["model_stats"]
    return int(found["inference_count"])


def test_options_of_locust_go_to_locust_and_those_of_the_server_to_it() -> None:
    plan = parse(["--pace", "3", "--serve=--max-queue 8 --threads 1", "--model", "mlp"])
    assert plan.more == ("--pace", "3")
    assert server_flags(plan)[2:] == ["--max-queue", "8", "--threads", "1"]
    assert server_flags(plan)[:2] == ["--model", f"mlp={ROOT / 'loadtest' / 'models' / 'mlp'}"]
    assert server_flags(parse([])) == []
