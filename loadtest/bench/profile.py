"""Where the time of a call goes: `python -m loadtest.bench.profile` samples the server under the echo load.

py-spy reads the server's stacks from outside while 64 connections post V2 JSON to `echo`; the ten functions with the
largest share of their own are printed and written to docs/bench/hot-path.md.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import bodies, machine
from .load import CONNECTIONS, ROOT, LoadError
from .servers import ServerError
from .session import Measured, Plan, Session, clients

PAGE = ROOT / "docs" / "bench" / "hot-path.md"
RATE_HZ = 200  # two samples a hundred requests or so; much more and the pauses of sampling show in the figures
TOP = 10
LEAST_SHARE = 0.05  # threads below it are left out: idle ones, which a sample now and then takes for running
THREAD = re.compile(r"thread \([^)]*\):? ?(?P<name>.*)")
LINE = re.compile(r":\d+\)$")
NOTES = """\
Shares are of the samples in which that thread was running. "Self" is time in the function's own lines and in the C that
it calls, which has no Python frame: for the loop's `run` that is libuv, the HTTP parser and reading from sockets; for
whatever writes to the transport, writing. "Total" adds what it calls in Python. Waiting for the interpreter lock counts
as running. Sampling pauses the server, so its rate here is below the benchmark's.
"""


@dataclass
class Thread:
    """The samples of one thread by function: as the innermost, and anywhere on the stack."""

    name: str
    samples: int = 0
    own: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    def add(self, stack: list[str], count: int) -> None:
        self.samples += count
        self.own[stack[-1]] += count
        self.total.update(dict.fromkeys(stack, count))

    def top(self) -> list[tuple[str, float, float]]:
        """Function, own share and total share of the most expensive, most expensive first."""
        return [
            (name, count / self.samples, self.total[name] / self.samples) for name, count in self.own.most_common(TOP)
        ]


def parse(raw: str) -> list[Thread]:
    """py-spy's raw lines, `thread (id): name;outer;...;inner count`, as threads, the busiest first."""
    threads: dict[str, Thread] = {}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        head, *frames = stack.split(";")
        match = THREAD.match(head)
        if match and frames and count.isdigit():
            name = match["name"] or "unnamed"
            functions = [LINE.sub(")", frame) for frame in frames]
            threads.setdefault(name, Thread(name)).add(functions, int(count))
    return sorted(threads.values(), key=lambda thread: -thread.samples)


def sample(spy: str, pid: int, seconds: int) -> str:
    """py-spy's raw output for a process. Raises LoadError with its words if it may not look, or fails."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        out = Path(folder) / "raw.txt"
        command = [spy, "record", "--pid", str(pid), "--duration", str(seconds), "--rate", str(RATE_HZ)]
        command += ["--format", "raw", "--threads", "--function", "--output", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
        except subprocess.TimeoutExpired as error:
            raise LoadError("py-spy did not end") from error
        if done.returncode or not out.exists():
            raise LoadError(f"py-spy failed (it must be allowed to trace processes): {done.stderr.strip()[-400:]}")
        return out.read_text(encoding="utf-8")


def profile(session: Session, spy: str, seconds: int) -> tuple[list[Thread], Measured]:
    """Sample the server while it is loaded: the load begins before the sampling and ends after it."""
    request = session.request("echo", bodies.v2_json)
    server = session.starling()
    session.warm_up(server, request)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(session.load, server, request, seconds + 2.0)
        threads = parse(sample(spy, server.process.pid, seconds))
        return threads, load.result()


def busy(threads: list[Thread], seconds: int) -> list[tuple[Thread, float]]:
    """The threads that ran for at least LEAST_SHARE of the time, with the share of it."""
    shares = ((thread, thread.samples / (RATE_HZ * seconds)) for thread in threads)
    return [(thread, share) for thread, share in shares if share >= LEAST_SHARE]


def markdown(facts: dict[str, str], threads: list[tuple[Thread, float]]) -> str:
    lines = ["# The hot path, sampled", "", NOTES, *(f"- {name}: {text}" for name, text in facts.items())]
    for thread, share in threads:
        lines += ["", f"## {thread.name}: running {share:.0%} of the time", ""]
        lines += ["| self | total | function |", "| --- | --- | --- |"]
        lines += [f"| {own:.1%} | {total:.1%} | `{name}` |" for name, own, total in thread.top()]
    return "\n".join([*lines, ""])


def show(console: Console, facts: dict[str, str], threads: list[tuple[Thread, float]]) -> None:
    for name, text in facts.items():
        console.print(f"[bold]{name}[/]: {text}", highlight=False)
    for thread, share in threads:
        table = Table("self", "total", "function", title=f"{thread.name}: running {share:.0%} of the time")
        for name, own, total in thread.top():
            table.add_row(f"{own:.1%}", f"{total:.1%}", name)
        console.print(table)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.profile", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="how long to sample, 1 to 60 [10]")
    parser.add_argument("--server", nargs="+", default=[], help="command of the server to sample")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page to write [docs/bench/hot-path.md]")
    options = parser.parse_args(arguments)
    console = Console()
    beside = Path(sys.executable).with_name("py-spy")
    spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if spy is None:
        console.print("py-spy is not installed; install it into this environment with: pip install py-spy")
        return 1
    seconds = max(1, min(options.seconds, 60))
    client = next(iter(clients()))
    facts = machine.describe()
    try:
        with Session(Plan(client=client, server=tuple(options.server))) as session:
            found, measured = profile(session, spy, seconds)
    except (LoadError, ServerError, ValueError) as error:
        console.print(f"[red]no profile:[/] {error}", highlight=False)
        return 1
    what = f"echo, V2 JSON, {CONNECTIONS} connections, sampled {RATE_HZ} times a second for {seconds} s"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    rate = f"{measured.per_second:,.0f} requests/s while sampled ({clients()[client]})"
    facts = {"command": "`python -m loadtest.bench.profile`", "date": date, **facts, "load": what, "rate": rate}
    threads = busy(found, seconds)
    show(console, facts, threads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(markdown(facts, threads), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
