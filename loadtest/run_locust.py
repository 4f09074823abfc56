"""`make load`: start a server, put Locust's load on it, leave a report, and end both, whatever happens.

Children run in sessions of their own, so that Ctrl-C reaches only this process: Locust is asked first and writes its
report, then the server. Both are ended by their process ids, by force where they do not listen.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "load"
ZOO = ROOT / "app" / "models" / "zoo"
USERS = {"json": ("JsonUser",), "binary": ("BinaryUser",), "image": ("ImageUser",)}
PAYLOADS = (*USERS, "all")
SHAPES = ("none", "steps", "diurnal", "spike", "ramp")
READY_LIMIT_S = 120.0  # a cold import of torch and the warm-up of every model, on a slow machine
STOP_LIMIT_S = 15.0
LISTEN_ATTEMPTS = 500  # of 20 ms
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPORTS = ("report.html", "results.json", "server.log")


class LoadRunError(Exception):
    """The server or Locust could not be run; the message says why."""


@dataclass(frozen=True)
class Plan:
    """What the command line decides. `more` goes to Locust as it is, `serve` to the server."""

    users: int
    seconds: str
    shape: str
    model: str
    payload: str
    host: str
    web: bool
    serve: tuple[str, ...]
    out: Path
    more: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Plan:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.run_locust",
        description="Start a server, load it with Locust, leave a report in out/load.",
        epilog="All other options go to Locust: --pace, --rows, --lengths, --images, --max-p99-ms, --processes, ...; "
        "locust -f loadtest/locustfile.py --help lists them.",
        allow_abbrev=False,
    )
    parser.add_argument("--users", type=int, default=16, help="most users at one time [16]")
    parser.add_argument("--duration", default="30s", help="length, as 30, 30s, 5m or 1h [30s]")
    parser.add_argument("--shape", choices=SHAPES, default="none", help="users over time; none: constant [none]")
    parser.add_argument("--model", default="digits", help="model to call [digits]")
    parser.add_argument("--payload", choices=PAYLOADS, default="json", help="what users send [json]")
    parser.add_argument("--host", default="", help="URL of a server that runs already, instead of starting one")
    parser.add_argument("--serve", default="", help="more options of `starling serve`, in one string")
    parser.add_argument("--web", action="store_true", help="Locust's page, until Ctrl-C, instead of a run at once")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the report [out/load]")
    options, more = parser.parse_known_args(arguments)
    if options.users < 1:
        parser.error(f"--users: expected at least 1, got {options.users}")
    return Plan(
        options.users, options.duration, options.shape, options.model, options.payload, options.host, options.web,
        tuple(options.serve.split()), options.out, tuple(more),
    )  # fmt: skip


def stop(process: subprocess.Popen[str], number: int) -> int:
    """Ask a child to end, kill it where it does not within STOP_LIMIT_S; its exit status."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Server:
    """`starling serve` on a port that it chooses itself; what it says is read, and kept in `log`."""

    def __init__(self, flags: Sequence[str], log: Path) -> None:
        command = [sys.executable, "-m", "app", "serve", "--port", "0", "--drain-grace-s", "0", *flags]
        env = {name: value for name, value in os.environ.items() if not name.startswith("STARLING_")}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.log = log
        self.told = threading.Condition()
        self.ended = False
        self.act: Callable[[], None] = lambda: None
        self.reader = threading.Thread(target=self._read, name="server-stderr", daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.log.open("w", encoding="utf-8") as log:
            for line in self.process.stderr:
                log.write(line)
                log.flush()
                with self.told:
                    self.lines.append(line.rstrip())
                    self.told.notify_all()
        with self.told:
            self.ended = True
            act = self.act
            self.told.notify_all()
        act()

    def find(self, pattern: str) -> re.Match[str] | None:
        return next((found for line in self.lines if (found := re.search(pattern, line))), None)

    def wait_ready(self, model: str) -> str:
        """The URL, once the server has said that it is ready. Raises LoadRunError with its words if it never does."""
        with self.told:
            self.told.wait_for(lambda: self.find("^ready in ") or self.ended, READY_LIMIT_S)
            address, ready = self.find(r"listening on (\S+) when ready"), self.find("^ready in ")
        said = "\n  ".join(self.lines[-12:])
        if address is None or ready is None:
            raise LoadRunError(f"the server did not become ready:\n  {said}")
        if self.find(rf"^FAILED +{re.escape(model)}:"):
            raise LoadRunError(f"model {model!r} did not load:\n  {said}")
        wait_listening(address[1])
        return address[1]

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act`, on another thread, once the server has ended; at once if it has already."""
        with self.told:
            self.act = act
            if not self.ended:
                return
        act()

    def stop(self) -> int:
        """End the server if it has not; its exit status."""
        with held():
            status = stop(self.process, signal.SIGTERM)
            self.reader.join()
            assert self.process.stderr is not None
            self.process.stderr.close()
            return status


def wait_listening(url: str) -> None:
    """The port is bound before models load, but connections are refused until a moment after the last has."""
    pause = threading.Event()
    for _ in range(LISTEN_ATTEMPTS):
        connection = HTTPConnection(urlsplit(url).netloc, timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        pause.wait(0.02)
    raise LoadRunError(f"{url} says that it is ready but does not answer so")


def server_flags(plan: Plan) -> list[str]:
    """The demo models, and of the benchmark's the one that is called: they take longer to load."""
    chosen = ["--model", f"{plan.model}={ZOO / plan.model}"] if (ZOO / plan.model / "model.toml").exists() else []
    return [*chosen, *plan.serve]


def locust_command(plan: Plan, url: str) -> list[str]:
    """Locust on all that the plan says. With a page nothing starts by itself, and the page chooses users and shape."""
    names = [name for kind in USERS if plan.payload in (kind, "all") for name in USERS[kind]]
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--host", url]
    command += ["--users", str(plan.users), "--run-time", plan.seconds, "--model", plan.model, "--shape", plan.shape]
    command += ["--html", str(plan.out / "report.html"), "--results", str(plan.out / "results.json")]
    command += ["--stop-timeout", "5"]  # answers on their way when users stop are counted, not cut off
    if plan.shape == "none":
        command += ["--spawn-rate", str(min(plan.users, 100))]
    if plan.web:
        command += ["--web-host", "127.0.0.1", "--web-port", str(free_port())]
        command += ["--class-picker"] if plan.shape == "none" else []
    else:
        command += ["--headless", "--only-summary"]
    # A page with a picker offers all users; naming some here would take the others from it.
    return [*command, *plan.more, *([] if "--class-picker" in command else names)]


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Signals wait for the end of the block: while a child is started nobody could end it, and ends are bounded."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def start_locust(command: Sequence[str]) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, text=True, start_new_session=True)


def run_locust(command: Sequence[str], server: Server | None = None) -> int:
    """Run Locust to its end, or to the server's; its exit status. A signal gives it time for its report."""
    with contextlib.ExitStack() as stack:
        with held():
            process = start_locust(command)
            stack.callback(end_locust, process)
        if server is not None:
            # An interrupt that comes at a bad moment is lost in Locust, which then runs on against nobody.
            server.when_ended(lambda: stop(process, signal.SIGINT))
        return process.wait()


def end_locust(process: subprocess.Popen[str]) -> None:
    with held():
        stop(process, signal.SIGINT)


def execute(plan: Plan) -> int:
    """Server, load, end; the exit status. Raises LoadRunError, or whatever a signal raised."""
    plan.out.mkdir(parents=True, exist_ok=True)
    for name in REPORTS:  # an earlier run's must not be taken for this one's
        (plan.out / name).unlink(missing_ok=True)
    if plan.host:
        return run_locust(locust_command(plan, plan.host))
    with contextlib.ExitStack() as stack:
        with held():
            server = Server(server_flags(plan), plan.out / "server.log")
            stack.callback(server.stop)
        print("starting the server", flush=True)
        url = server.wait_ready(plan.model)
        print(f"server ready at {url}", flush=True)
        status = run_locust(locust_command(plan, url), server)
        if server.process.poll() is not None:
            raise LoadRunError(f"the server ended with {server.process.returncode} during the load")
        if ended := server.stop():
            raise LoadRunError(f"the server was asked to end and did so with {ended}")
    return status


def shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def leave(number: int, _: FrameType | None) -> None:
    """Unwind as after Ctrl-C."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str]) -> int:
    plan = parse(arguments)
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    try:
        return execute(plan)
    except LoadRunError as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        for name in REPORTS:
            if (plan.out / name).exists():
                print(f"wrote {shown(plan.out / name)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
