"""Far more clients than the server can serve: `python -m experiments.overload.resending`.

One server, clients that send again at once after a refusal, on connections that they keep or on a new one each time;
beside them a prober that asks `/livez` on a connection of its own. Then clients that come at a multiple of what the
model can do and resend, wait or leave. Writes docs/bench/overload.json; the exit status is 1 if goodput fell
below 0.6 of that at 64 connections, or a probe in a hundred took half a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from experiments.overload.crowd import LEAVES, RESENDS, WAITS, Job, percentile
from loadtest.bench import bodies
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, ms
from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import Child, MeasurementError, Server, starling
from loadtest.generator.load import PreparedRequest, answer_of

CONNECTIONS = (64, 1100, 2500, 4000)
LOADS = (1.0, 2.0, 5.0, 10.0, 20.0)
PROBE_EVERY_S = 0.02
_PROBE_LIMIT_S = 10.0
_SPARE_S = 60.0
MODELS = {"echo": "demo", "fifty": str(Path(__file__).parent / "models" / "fifty")}
FIFTY_PER_S = 160.0  # rows a second of the model that takes 50 ms
_MOST_OPEN = 3500  # connections of clients that come and go: below the server's limit


def probe(port: int, child: Child, begins_s: float) -> list[float]:
    """How long `/livez` took, in milliseconds, again and again until `child` ends. A failure counts as the limit."""
    took: list[float] = []
    while child.process.poll() is None:
        began = time.perf_counter()
        connection = HTTPConnection(LOOPBACK, port, timeout=_PROBE_LIMIT_S)
        try:
            connection.request("GET", "/livez")
            fine = connection.getresponse().status == 200
        except (OSError, HTTPException):
            fine = False
        finally:
            connection.close()
        spent = time.perf_counter() - began
        if began >= begins_s:
            took.append((spent if fine else _PROBE_LIMIT_S) * 1e3)
        time.sleep(PROBE_EVERY_S)
    return sorted(took)


def under(server: Server, job: Job) -> Data:
    """The figures of one load."""
    before = server.cpu_seconds() or 0.0
    began = time.perf_counter()
    with Child(
        [sys.executable, "-m", "experiments.overload.crowd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.process.stdin is not None
        child.process.stdin.write(json.dumps(asdict(job)).encode())
        child.process.stdin.close()
        child.process.stdin = None
        probes = probe(server.port, child, time.perf_counter() + job.warm_s)
        try:
            output, _ = child.process.communicate(timeout=_SPARE_S)
        except subprocess.TimeoutExpired:
            raise MeasurementError("the clients did not end") from None
        if child.process.returncode:
            raise MeasurementError(f"the clients failed: {child.last_output()}")
    counted = json.loads(output)
    cpu = ((server.cpu_seconds() or 0.0) - before) / (time.perf_counter() - began)
    status: dict[str, int] = counted["status"]
    answered = status.get("200", 0)
    return {
        "kind": job.kind, "fresh": job.fresh, "connections": job.connections, "rate": job.rate,
        "goodput": answered / job.seconds, "refused": status.get("429", 0) / job.seconds,
        "other": {name: count for name, count in status.items() if name not in ("200", "429")},
        "failed": counted["failed"], "left": counted["left"] / job.seconds, "cores": cpu,
        **{name: counted[name] for name in ("p50_ms", "p99_ms", "refused_p50_ms", "refused_p99_ms")},
        "probes": len(probes), "probe_p50_ms": percentile(probes, 0.5), "probe_p99_ms": percentile(probes, 0.99),
        "probe_max_ms": probes[-1] if probes else None,
    }  # fmt: skip


def say_of(found: Data) -> str:
    how = "a new one each time" if found["fresh"] or found["rate"] else f"{found['connections']} kept"
    if found["fresh"]:
        how = f"{found['connections']} clients, {how}"
    rate = f" at {found['rate']:g}/s" if found["rate"] else ""
    return (
        f"{found['kind']}, {how}{rate}: {found['goodput']:.0f}/s answered, {found['refused']:.0f}/s refused, /livez "
        f"99 % {found['probe_p99_ms'] or -1:.0f} ms {found['other'] or ''}{found['failed'] or ''}"
    )


def text_of(request: PreparedRequest, port: int, *, fresh: bool) -> str:
    headers = (*request.headers, ("Connection", "close")) if fresh else request.headers
    return PreparedRequest(request.name, request.path, headers, request.body).encode(port).decode("latin-1")


def jobs(port: int, request: PreparedRequest, chosen: argparse.Namespace, model: str) -> list[Job]:
    """The loads of one model, in turn."""
    found = []
    for fresh in (False, True):
        text = text_of(request, port, fresh=fresh)
        found += [Job(port, text, count, chosen.seconds, fresh=fresh) for count in chosen.connections]
    if model == "fifty":
        for kind in (RESENDS, WAITS, LEAVES):
            text = text_of(request, port, fresh=True)
            warm_s = _LEARNT_S if kind == LEAVES else 2.0
            found += [
                Job(port, text, _MOST_OPEN, chosen.seconds, kind, warm_s=warm_s, rate=load * FIFTY_PER_S)
                for load in chosen.loads
            ]
    return found


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    models: dict[str, list[Data]] = {}
    for model in chosen.models:
        models[model] = []
        flags = ("--models", MODELS[model], "--threads", "1", "--profile-budget-s", "0")
        for job_of in range(len(jobs(0, _ANY, chosen, model))):
            # A server for each load: the queue of the one before would still be answered in the next.
            with starling(flags, chosen.server.split()) as server:
                server.wait_ready()
                request = bodies.v2_json(server.metadata(model))
                answer_of(server, request)
                models[model].append(under(server, jobs(server.port, request, chosen, model)[job_of]))
            run.say(f"{model}: {say_of(models[model][-1])}")
    return {"seconds": chosen.seconds, "fifty_per_s": FIFTY_PER_S, "models": models}


_LEARNT_S = 10.0  # warm-up with clients that leave: the server learns from those who left how long callers wait
_ANY = PreparedRequest("", "/", (), b"")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of each load, after 2 s of warm-up (10 with clients that leave) [5]"
    )
    parser.add_argument(
        "--connections", type=int, nargs="+", default=list(CONNECTIONS), help="clients that resend [64 1100 2500 4000]"
    )
    parser.add_argument("--loads", type=float, nargs="*", default=list(LOADS), help="times 160/s [1 2 5 10 20]")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="[both]")
    parser.add_argument("--server", default="", help="command of the server to measure, such as another build's")


LEAST_GOODPUT = 0.6  # of that with the fewest connections
MOST_PROBE_MS = 500.0


def closed(loads: list[Data]) -> list[Data]:
    """The loads of a closed loop: those that keep their connections, then those that come anew."""
    return sorted((one for one in loads if not one["rate"]), key=lambda one: bool(one["fresh"]))


def share(one: Data, loads: list[Data]) -> float:
    """Its goodput over that with the fewest connections of the same kind."""
    first = next(other for other in closed(loads) if other["fresh"] == one["fresh"])["goodput"]
    return float(one["goodput"] / first) if first else 0.0


def met(one: Data, loads: list[Data]) -> bool:
    slow = one["probe_p99_ms"] is None or one["probe_p99_ms"] >= MOST_PROBE_MS
    return not slow and share(one, loads) >= LEAST_GOODPUT


def in_ms(value: float | None) -> str:
    return "none" if value is None else ms(value)


def missed(data: Data) -> list[str]:
    return [
        f"{model}, {one['connections']} {'new' if one['fresh'] else 'kept'} connections: {share(one, loads):.2f} of "
        f"the goodput, /livez {in_ms(one['probe_p99_ms'])} ms"
        for model, loads in data["models"].items()
        for one in closed(loads)
        if not met(one, loads)
    ]


def failed(data: Data) -> Counter[str]:
    """Requests without an answer, by kind."""
    return sum((Counter(one["failed"]) for loads in data["models"].values() for one in loads), Counter())


PAGE = Page("overload", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.overload.resending", __doc__, measure, options)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
