"""Measures what one request costs a server beside its batch: the CPU time of the thread that has the event loop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from app.errors import ConfigError

_IN_FLIGHT = 8  # requests: as many as meet at a server that is busy, not so many that they share all work
_WARM_S, _RUN_S = 1.0, 3.0
_END_S = 30.0
_ANY_LAG_MS = 1e5


def measure_http_us(model: str, serve: Sequence[str], lengths: str = "16") -> float:
    """Microseconds of a request of one row as V2 JSON, over loopback.

    Starts `starling serve` with the flags `serve` on a free port, puts load on `model`, and ends it. Raises ConfigError
    where that fails, and where the system does not tell what a thread costs.
    """
    from app.bench.plan import Plan
    from app.bench.run import Unusable, in_loop, measure

    with _server(serve) as (process, url):
        # How late this client is says nothing of what the server's thread costs.
        plan = Plan(
            url=url, model=model, concurrency=_IN_FLIGHT, duration_s=_RUN_S, warmup_s=0, repeats=1, lengths=lengths,
            check="shapes", max_lag_ms=_ANY_LAG_MS,
        )  # fmt: skip
        try:
            in_loop(measure(replace(plan, duration_s=_WARM_S)))
            before = _thread_ns(process.pid)
            result = in_loop(measure(plan))
            spent = _thread_ns(process.pid) - before
        except Unusable as exc:
            raise ConfigError(f"http: {exc}") from None
    if not result.completed:
        raise ConfigError(f"http: no request was answered: {', '.join(result.examples.values())}")
    return spent / 1e3 / result.requests


def _thread_ns(pid: int) -> int:
    """Nanoseconds of CPU that a process's first thread has used."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        raise ConfigError("http: this system does not tell a thread's CPU time; give --http-us") from None


@contextmanager
def _server(flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its URL."""
    command = [sys.executable, "-m", "app", "serve", *flags, "--port", "0", "--drain-grace-s", "0"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STARLING_")}  # no key, no JSON
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=plain) as process:
        try:
            assert process.stderr is not None
            lines, url = [], ""
            for line in process.stderr:
                lines.append(line.strip())
                if found := re.match(r"url +(\S+)", line):
                    url = found[1]
                if re.search(r"\d+ of \d+ models? .*serves? on ", line):
                    break
            else:
                raise ConfigError(f"http: the server did not start: {lines[-1] if lines else 'it said nothing'}")
            rest = threading.Thread(target=process.stderr.read, daemon=True)  # or it stops at a full pipe
            rest.start()
            yield process, url
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
