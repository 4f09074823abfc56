"""`make load`: start a server, put Locust's load on it, leave a report, and end both, whatever happens.

Children run in sessions of their own, so that Ctrl-C reaches only this process: Locust is asked first and writes its
report, then the server. Both are ended by their process ids, by force where they do not listen.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from loadtest.common.paths import ROOT, ZOO
from loadtest.common.servers import STOP_LIMIT_S, Child, MeasurementError, Server, free_port, starling

OUT = ROOT / "out" / "load"
USERS = {"json": ("JsonUser",), "binary": ("BinaryUser",), "image": ("ImageUser",)}
PAYLOADS = (*USERS, "all")
SHAPES = ("none", "steps", "diurnal", "spike", "ramp")
_AGAIN_S = 5.0  # more than a report takes
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPORTS = ("report.html", "results.json", "server.log")


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
        command += ["--headless"]
    # A page with a picker offers all users; naming some here would take the others from it.
    return [*command, *plan.more, *([] if "--class-picker" in command else names)]


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


def end(child: Child, number: int) -> int:
    """Ask a child to end, kill it where it does not within STOP_LIMIT_S; its exit status."""
    with held():
        if child.process.poll() is None:
            child.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(STOP_LIMIT_S)
        child.stop()
    assert child.process.returncode is not None
    return child.process.returncode


def start_server(plan: Plan, stack: contextlib.ExitStack) -> Server:
    """Its output is kept beside the report. It is ended with `stack`."""
    log = stack.enter_context((plan.out / "server.log").open("w+b"))
    with held():
        server = starling(server_flags(plan), log=log, own_session=True)
        stack.callback(end, server, signal.SIGTERM)
    return server


def run_locust(command: Sequence[str], server: Server | None = None) -> int:
    """Run Locust to its end, or to the server's; its exit status. A signal gives it time for its report."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with contextlib.ExitStack() as stack:
        with held():
            locust = Child(command, environment={"PYTHONPATH": path}, inherit_output=True, own_session=True)
            stack.callback(end, locust, signal.SIGINT)
        if server is not None:
            threading.Thread(target=end_with, args=(server, locust), daemon=True).start()
        return locust.process.wait()


def end_with(server: Server, locust: Child) -> None:
    """Without a server Locust would run on against nothing. It is interrupted again if it does not end: one that comes
    while a user's request fails may be lost in it.
    """
    server.process.wait()
    while locust.process.poll() is None:
        locust.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            locust.process.wait(_AGAIN_S)


def execute(plan: Plan) -> int:
    """Server, load, end; the exit status. Raises MeasurementError, or whatever a signal raised."""
    plan.out.mkdir(parents=True, exist_ok=True)
    for name in REPORTS:  # an earlier run's must not be taken for this one's
        (plan.out / name).unlink(missing_ok=True)
    if plan.host:
        return run_locust(locust_command(plan, plan.host))
    with contextlib.ExitStack() as stack:
        server = start_server(plan, stack)
        print("starting the server", flush=True)
        server.wait_ready()
        print(f"server ready at {server.url}", flush=True)
        status = run_locust(locust_command(plan, server.url), server)
        if server.process.poll() is not None:
            raise MeasurementError(f"the server ended with {server.process.returncode} during the load")
        if ended := end(server, signal.SIGTERM):
            raise MeasurementError(f"the server ended with {ended} after SIGTERM")
    return status


def shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def leave(number: int, _: FrameType | None) -> None:
    """Unwind as after Ctrl-C."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str]) -> int:
    plan = parse(arguments)
    signal.signal(signal.SIGTERM, leave)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, leave)
    try:
        return execute(plan)
    except MeasurementError as error:
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
