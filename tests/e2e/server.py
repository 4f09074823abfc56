"""A real server of a copied model repository: started, waited for by its own words, and always ended by its pid."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from background import eventually

from .forked import Forked

ROOT = Path(__file__).parents[2]
REPOSITORY = Path(__file__).parent / "repository"
CERTIFICATES = ROOT / "tests" / "certificates"
DEMO = ROOT / "app" / "models" / "demo"
MIB = 1 << 20
PATIENCE_S = 60.0  # nothing here takes so long, also on a machine with three times the work that it has cores for


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"

    @property
    def error(self) -> str:
        """The message of an error answer, which has exactly one form."""
        found = self.json()
        assert list(found) == ["error"], found
        message: str = found["error"]
        return message


class Gate:
    """The test's side of the model `gate` in `folder`: see its model.py."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("entered", "leave"):
            os.mkfifo(folder / name)
        # read and write, so that neither side ever blocks in open
        self._entered = os.open(folder / "entered", os.O_RDWR | os.O_NONBLOCK)
        self._leave = os.open(folder / "leave", os.O_RDWR)

    def wait(self) -> None:
        """Until a batch stands at the gate."""
        assert select.select([self._entered], [], [], PATIENCE_S)[0], "no batch came to the gate"
        os.read(self._entered, 1)

    def open(self) -> None:
        """Let one batch through."""
        os.write(self._leave, b".")

    def ran(self) -> list[float]:
        """First values of all rows that the model has been run on."""
        return [float(line) for line in (self._folder / "ran").read_text().splitlines()]

    def close(self) -> None:
        os.close(self._entered)
        os.close(self._leave)


class Server:
    """`starling serve` on a free port. `models` are the names of folders here that its repository holds.

    `fresh` starts the command in an interpreter of its own, which takes 3 s of CPU more than a fork: for tests of how
    a server begins or ends.
    """

    def __init__(self, folder: Path, models: tuple[str, ...], *flags: str, fresh: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.repository = folder
        for name in models:
            shutil.copytree(REPOSITORY / name, folder / name)
        self.gate = Gate(folder / "gate") if "gate" in models else None
        self.headers: dict[str, str] = {}  # sent with every request, such as a key
        arguments = ["serve", "--models", str(folder), "--port", "0", *flags]
        env = {name: value for name, value in os.environ.items() if not name.startswith("STARLING_")}
        # No profile of an earlier run, and none measured: a test that wants one gives the flags.
        env |= {"STARLING_PROFILE_BUDGET_S": "0", "STARLING_PROFILE_DIR": f"{folder}-profiles"}
        self.process: subprocess.Popen[str] | Forked
        if fresh:
            env["STARLING_POLICY"] = "no_wait"  # it has no control tables, which take seconds to solve
            command = [sys.executable, "-m", "app", *arguments]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        else:
            self.process = Forked(arguments, ROOT, env)
        self.lines: list[str] = []
        self._reads = threading.Event()
        self._reads.set()
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="server-output")
        self._reader.start()
        try:
            address = self.line(r"listening on (\S+) when ready").group(1)
            self.host = urlsplit(address).netloc
            self.tls = trusting() if urlsplit(address).scheme == "https" else None
            self.line(r"ready (in|after) ")
            # the port is bound; it listens a moment later
            eventually(lambda: self.get("/v2/health/live").status == 200)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reads.wait()
            with self._told:
                self.lines.append(line.rstrip("\n"))
                self._told.notify_all()
        with self._told:
            self.lines.append("")
            self._told.notify_all()

    def stop_reading(self) -> None:
        """Its output is not read any more until it is stopped, and a few lines fill the pipe."""
        assert self.process.stdout is not None
        self._reads.clear()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self.process.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)

    def line(self, pattern: str) -> re.Match[str]:
        """Wait until the server has written a line like this."""

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        with self._told:
            self._told.wait_for(lambda: found() or not self._reader.is_alive(), PATIENCE_S)
            match = found()
        assert match, f"no line like {pattern!r} in:\n" + "\n".join(self.lines)
        return match

    def socket(self) -> socket.socket:
        """A connection on which nothing has been sent."""
        host, _, port = self.host.partition(":")
        return socket.create_connection((host, int(port)), PATIENCE_S)

    def connection(self) -> http.client.HTTPConnection:
        if self.tls is not None:
            return http.client.HTTPSConnection(self.host, timeout=PATIENCE_S, context=self.tls)
        return http.client.HTTPConnection(self.host, timeout=PATIENCE_S)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        connection = self.connection()
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            data = answer.read()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, data)
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: bytes | Any = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """`body` is bytes, or a value sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, data, headers)

    def infer(self, model: str, rows: list[Any], headers: Mapping[str, str] | None = None, **parameters: Any) -> Reply:
        """Rows of vectors for the FP32 input `x`, as V2 JSON."""
        shape = [len(rows), len(rows[0])]
        tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": rows}
        return self.post(f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": parameters}, headers)

    def _metrics(self, line: str) -> list[Any]:
        """What the groups of a pattern find in the lines of /metrics."""
        return re.findall(f"^{line}$", self.get("/metrics").body.decode(), re.MULTILINE)

    def metric(self, sample: str) -> float:
        """The value of one line of /metrics, 0 where there is none."""
        return sum(map(float, self._metrics(rf"{re.escape(sample)} (\S+)")))

    def outcomes(self, model: str) -> Counter[str]:
        """Requests so far by outcome, of all versions of a model; only outcomes that there were."""
        counted: Counter[str] = Counter()
        pattern = rf'starling_requests_total{{class="\w+",model="{model}",outcome="(\w+)",.*}} (\S+)'
        for outcome, count in self._metrics(pattern):
            counted[outcome] += int(float(count))
        return +counted

    def waiting(self, model: str) -> int:
        """Rows in a model's queues."""
        labels = f'model="{model}",version="1"'
        classes = ("realtime", "best_effort")
        return sum(int(self.metric(f'starling_queue_length{{class="{one}",{labels}}}')) for one in classes)

    def slots(self, model: str) -> int:
        return int(self.metric(f'starling_pool_slots_used{{model="{model}",version="1"}}'))

    def peak_memory(self) -> int:
        """Bytes: the most the process has held at one time."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024  # type: ignore[union-attr]

    def tell(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the process; its exit status."""
        return self.process.wait(PATIENCE_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it, by force where it does not listen; its exit status."""
        if self.process.poll() is None:
            self.tell(number)
        try:
            return self.ended()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reads.set()
            self._reader.join()
            if self.process.stdout is not None:
                self.process.stdout.close()
            if self.gate is not None:
                self.gate.close()
                self.gate = None


def trusting() -> ssl.SSLContext:
    """What a client needs to believe the certificates of these tests."""
    context = ssl.create_default_context()
    for path in CERTIFICATES.glob("*.pem"):
        context.load_verify_locations(path)
    return context
