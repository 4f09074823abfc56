"""Replaces servers behind nginx under load, and counts what their clients notice: `python -m loadtest.drill`.

nginx has the configuration of the ingress in deploy/, the servers the drain settings there; the load is that of
`starling bench`. At the end one request crashes the server that runs it: the other must go on. Writes
docs/bench/drill.json; the exit status is 1 if a request failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from app.settings import Settings
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import Child, MeasurementError, Server, free_port, starling
from loadtest.drill import nginx

SETTINGS = ROOT / "deploy" / "kubernetes" / "base" / "settings.env"
FATAL = ROOT / "loadtest" / "drill" / "fatal"
SPARE_S = 10.0  # over the drain limit, for the last answers and the end of the process
UNDISTURBED_S = 3.0  # of load before the first signal
FIGURES = ("requests", "completed", "status", "errors", "error_examples", "p50_ms", "p99_ms", "max_ms")


LOADING = "status 503"  # of `starling bench`'s errors


def drain_settings() -> Settings:
    """The settings that pods have, as far as they are about the end of a server."""
    lines = SETTINGS.read_text(encoding="utf-8").split()
    given = dict(line.removeprefix("STARLING_").lower().split("=", 1) for line in lines)
    return Settings(**{name: value for name, value in given.items() if name.startswith("drain_")})  # type: ignore[arg-type]


class Replicas:
    """Servers on ports of their own, each of which can be replaced. Ended with `stack`."""

    def __init__(self, names: str, settings: Settings, profiles: Path, stack: ExitStack) -> None:
        self._settings = settings
        self._profiles = profiles
        self._stack = stack
        self.ports = {name: free_port() for name in names}
        self._servers = {name: self._start(name) for name in names}
        for server in self._servers.values():
            server.wait_ready()

    def _start(self, name: str) -> Server:
        flags = (
            "--models", self._settings.models, "--model", f"fatal={FATAL}", "--threads", "1",
            "--profile-dir", str(self._profiles), "--profile-budget-s", "0",
            "--drain-grace-s", str(self._settings.drain_grace_s), "--drain-limit-s", str(self._settings.drain_limit_s),
        )  # fmt: skip
        server = self._stack.enter_context(starling(flags, port=self.ports[name]))
        # When the drill ends, the grace would only be waited for.
        self._stack.callback(server.process.send_signal, signal.SIGINT)
        return server

    def replace(self, name: str) -> Data:
        """Tell a server to end, wait for it, start another on its port, wait until that is ready."""
        old = self._servers[name]
        told_s = time.perf_counter()
        old.process.send_signal(signal.SIGTERM)
        limit_s = self._settings.drain_grace_s + self._settings.drain_limit_s + SPARE_S
        try:
            status = old.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"server {name} had not ended {limit_s:g} s after SIGTERM") from None
        ended_s = time.perf_counter() - told_s
        new = self._servers[name] = self._start(name)
        return {"server": name, "exit": status, "ended_s": ended_s, "ready_s": new.wait_ready()}

    def lost(self) -> int:
        """How many have ended."""
        return sum(server.process.poll() is not None for server in self._servers.values())


def poisoned(replicas: Replicas, port: int) -> Data:
    """Send one request that ends the process which runs it; then ask the others."""
    status = asked(port, 666.0)
    limit_s = time.monotonic() + SPARE_S
    while not replicas.lost() and time.monotonic() < limit_s:
        time.sleep(0.05)
    time.sleep(1.0)  # for a second try to do its work, if there is one
    return {"status": status, "lost": replicas.lost(), "after": [asked(port, 1.0) for _ in range(10)]}


def asked(port: int, value: float) -> int:
    """The status of one request to the model that can be crashed; 502 where the connection broke, as nginx has it."""
    connection = HTTPConnection(LOOPBACK, port, timeout=SPARE_S)
    try:
        connection.request("POST", "/predict/fatal", json.dumps([value]), {"Content-Type": "application/json"})
        return connection.getresponse().status
    except (OSError, HTTPException):
        return 502
    finally:
        connection.close()


def under_load(replicas: Replicas, times: int, load: Child, say: Callable[[str], None]) -> list[Data]:
    """Replace each server so many times, in turn. Raises MeasurementError if the load ends before."""
    time.sleep(UNDISTURBED_S)
    found = []
    for _ in range(times):
        for name in replicas.ports:
            found.append(replicas.replace(name))
            say("server {server}: ended after {ended_s:.1f} s, ready after {ready_s:.1f} s".format(**found[-1]))
            if load.process.poll() is not None:
                figures_of(load)  # which may say why
                raise MeasurementError("the load ended before the last server was replaced: give more --seconds")
    return found


def bench(port: int, chosen: argparse.Namespace) -> Child:
    # The lag of a client on a busy machine is no matter here: what counts is whether each request is answered.
    command = [
        sys.executable, "-m", "app", "bench", f"http://{LOOPBACK}:{port}", "--model", chosen.model, "--rate",
        str(chosen.rate), "--repeats", "1", "--duration", str(chosen.seconds), "--max-lag-ms", "60000", "--json",
    ]  # fmt: skip
    return Child(command, stdout=subprocess.PIPE)


def figures_of(load: Child) -> dict[str, Any]:
    """Wait for the load to end. Raises MeasurementError if it was none."""
    output, _ = load.process.communicate()
    if load.process.returncode:
        raise MeasurementError(f"starling bench ended with {load.process.returncode}: {load.last_output()}")
    figures: dict[str, Any] = json.loads(output)
    return {name: figures[name] for name in FIGURES}


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    told, settings = nginx.directives(), drain_settings()
    if chosen.next_upstream is not None:
        told["proxy_next_upstream"] = chosen.next_upstream
    nginx.installed()  # said before servers have started
    with tempfile.TemporaryDirectory(prefix="starling-drill-") as name, ExitStack() as stack:
        folder = Path(name)
        replicas = Replicas("AB", settings, folder / "profiles", stack)
        front = stack.enter_context(nginx.start(folder, list(replicas.ports.values()), told))
        front.wait_ready()
        run.say(f"{chosen.rate:g} requests/s for {chosen.seconds:g} s")
        load = stack.enter_context(bench(front.port, chosen))
        replacements = under_load(replicas, chosen.times, load, run.say)
        figures = figures_of(load)
        poison = poisoned(replicas, front.port)
        run.say("one fatal request: answered {status}, {lost} of 2 servers lost, then {after}".format(**poison))
        front.stop()
        attempts = nginx.attempts((folder / "access.log").read_text(encoding="utf-8"))
    return {
        "settings": settings_of(chosen, settings), "directives": told, "replacements": replacements,
        "load": figures, "attempts": dict(attempts), "poison": poison,
    }  # fmt: skip


def settings_of(chosen: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    return {
        "model": chosen.model, "rate": chosen.rate, "seconds": chosen.seconds, "times": chosen.times,
        "grace": settings.drain_grace_s, "limit": settings.drain_limit_s,
    }  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="digits", help="of the demo models [digits]")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second [100]")
    parser.add_argument("--times", type=int, default=3, help="that each server is replaced [3]")
    parser.add_argument("--next-upstream", help="in place of the ingress's, to see what fails without [the ingress's]")
    parser.add_argument("--seconds", type=float, default=180.0, help="of load [180]")


def lost(data: Data) -> int:
    """Requests without a right answer, but for those of a server that was loading."""
    load = data["load"]
    return int(load["requests"] - load["completed"] - load["errors"].get(LOADING, 0))


def missed(data: Data) -> list[str]:
    """What a drill must not show: a request without a right answer, or a server that did not end well."""
    found = [f"{count} x {kind}" for kind, count in data["load"]["errors"].items() if kind != LOADING]
    if lost(data) and not found:
        found.append(f"{lost(data)} requests without a right answer")
    poison = data["poison"]
    if poison["lost"] != 1 or set(poison["after"]) != {200}:
        found.append(f"a fatal request ended {poison['lost']} servers; then {poison['after']}")
    return found + [
        f"server {one['server']} ended with {one['exit']}" for one in data["replacements"] if one["exit"] != 0
    ]


def tried_again(data: Data) -> int:
    return sum(count for tried, count in data["attempts"].items() if "," in tried)


PAGE = Page("drill", __name__, missed)
EXPERIMENT = Experiment(PAGE, "loadtest.drill", __doc__, measure, options)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
