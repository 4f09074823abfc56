"""Servers and other programs as child processes, on free loopback ports, stopped by their own process ids."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any, Self

from loadtest.common.paths import LOOPBACK, ROOT

READY_PATH = "/v2/health/ready"
BARE_LIMIT_S = 30.0  # of servers that load no model
READY_LIMIT_S = 120.0  # a cold import of torch and the warm-up of every model, on a slow machine
STOP_LIMIT_S = 10.0
PATIENCE_S = 5.0  # until a server that is not ready is asked why
POLL_S = 0.005  # the largest error of a measured start
POLL_SHARE = 0.01  # of the time that has passed: polling must not slow down the start of the server


class MeasurementError(Exception):
    """A measurement failed; the message says what failed and why."""


class ServerError(MeasurementError):
    """A server did not start, ended too early, or did not answer as it must."""


def free_port() -> int:
    """A loopback port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def clean_environment() -> dict[str, str]:
    """This process's environment without STARLING_*, so that only the given flags configure a server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STARLING_")}


def cpu_seconds(pid: int) -> float | None:
    """User and system CPU time of a process; None if the platform does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: 14 and 15 of proc(5)


class Child:
    """A child process and its output. A context manager, which terminates the child and kills it if it does not end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        environment: Mapping[str, str] | None = None,
        log: IO[bytes] | None = None,
        inherit_output: bool = False,
        own_session: bool = False,
    ) -> None:
        """Its output goes to `log`, or to a temporary file, unless it inherits this process's. In a session of its own
        a Ctrl-C on the terminal does not reach it."""
        self.command = list(command)
        self.log = log or tempfile.TemporaryFile(prefix="starling-bench-")  # noqa: SIM115  closed in stop
        self.started_s = time.perf_counter()
        self.process = subprocess.Popen(
            self.command,
            stdin=stdin,
            stdout=None if inherit_output else self.log if stdout is None else stdout,
            stderr=None if inherit_output else self.log,
            start_new_session=own_session,
            cwd=ROOT,
            env={**clean_environment(), **(environment or {})},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Terminate the process, kill it after STOP_LIMIT_S, and wait for it."""
        try:
            self.process.terminate()
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.log.close()

    def last_output(self, characters: int = 800) -> str:
        """The last characters that the process wrote; "" if they went to somebody else."""
        if not self.log.seekable():
            return ""
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace").strip()[-characters:]

    @property
    def name(self) -> str:
        """The command without this machine's paths."""
        return " ".join([Path(self.command[0]).name, *self.command[1:3]])

    def cpu_seconds(self) -> float | None:
        """User and system CPU time of the process; None if the platform does not report it."""
        return cpu_seconds(self.process.pid)


class Server(Child):
    """A child that serves HTTP on `port`."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        feed: bytes | None = None,
        **options: Any,
    ) -> None:
        stdin = subprocess.DEVNULL if feed is None else subprocess.PIPE
        super().__init__(command, stdin=stdin, **options)
        self.port = port
        if feed is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(feed)
            self.process.stdin.close()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def wait_ready(self, path: str = READY_PATH, limit_s: float = READY_LIMIT_S) -> float:
        """Poll `path` until it answers 200; returns the seconds since the process was started. Raises ServerError."""
        while (elapsed_s := time.perf_counter() - self.started_s) < limit_s:
            if self.process.poll() is not None:
                raise ServerError(f"{self.name} ended with {self.process.returncode}: {self.last_output()}")
            status = self.probe(path)
            if status == 200:
                return time.perf_counter() - self.started_s
            if status == 503 and elapsed_s > PATIENCE_S:
                self.expect_loading()
            time.sleep(max(POLL_S, POLL_SHARE * elapsed_s))
        raise ServerError(f"{self.name} was not ready after {elapsed_s:.0f} s: {self.last_output()}")

    def probe(self, path: str) -> int:
        """The status of `path`; 0 while nothing answers."""
        try:
            return self.call("GET", path, timeout_s=2)[0]
        except (OSError, HTTPException):
            return 0

    def expect_loading(self) -> None:
        """Raise ServerError if a model has failed to load, since the server will not become ready then."""
        _, _, body = self.call("POST", "/v2/repository/index")
        failed = [model for model in json.loads(body) if model.get("state") == "UNAVAILABLE"]
        if failed:
            raise ServerError("; ".join(f"{model['name']} did not load: {model.get('reason')}" for model in failed))

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 30,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request on a new connection; returns status, headers in lower case, and body."""
        connection = HTTPConnection(LOOPBACK, self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def metadata(self, model: str) -> dict[str, Any]:
        """V2 metadata of a model. Raises ServerError if the server does not have it."""
        status, _, body = self.call("GET", f"/v2/models/{model}")
        if status != 200:
            raise ServerError(f"metadata of {model}: status {status}, {body[:200]!r}")
        metadata: dict[str, Any] = json.loads(body)
        return metadata


def starling(flags: Sequence[str], command: Sequence[str] = (), *, port: int | None = None, **options: Any) -> Server:
    """Start the server of this checkout. `command` replaces it, to compare builds; `options` are those of a child."""
    base = list(command) or [sys.executable, "-m", "app"]
    port = port or free_port()
    # The grace period is for load balancers, and there is none here; flags may give another.
    return Server([*base, "serve", "--port", str(port), "--drain-grace-s", "0", *flags], port, **options)
