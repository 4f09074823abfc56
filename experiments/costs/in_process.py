"""CPU time of a request in process, without sockets: `python -m experiments.costs.in_process`.

The server's HTTP protocol, its engine and the model `echo` run on one event loop; a transport that keeps nothing stands
for each connection, and batches run on the loop itself. So neither the kernel, nor a client, nor the hand-over to a
worker's thread is measured: only the server's own Python, which other load on the machine disturbs least. The bare ASGI
echo runs in the same way beside it, in alternation. `--trace` has calls traced, spans encoded for a collector and not
sent; `--threads` counts the thread that does so, too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app import process
from app.contract import ModelSource, Served
from app.engine.cpu.device import CpuDevice
from app.engine.cpu.executor import CpuExecutor
from app.engine.device import Report
from app.engine.engine import Engine
from app.engine.executor import Job, Stop
from app.engine.profiling.service import Profiling
from app.http.asgi import HttpApp
from app.http.auth import Auth
from app.http.body import Limits
from app.http.connection.connection import HttpProtocol
from app.http.connection.idle_connections import IdleConnections
from app.http.resources import Resources
from app.models.loading import load
from app.models.repository import SETS
from app.scheduler.scheduler import Scheduler
from loadtest.bench import bodies
from loadtest.bench.echo_app import app as bare_app
from loadtest.generator.load import PreparedRequest

MIB = 1 << 20
METADATA = {"name": "echo", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}
LIMITS = Limits(body=MIB, json=MIB, inflight=64 * MIB, body_timeout_s=30, connections=10_000)


class OnLoop(CpuDevice):
    """A CPU device whose worker is the event loop."""

    def start(self, report: Report) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = report

    def push(self, worker: int, job: Job, stop: Stop) -> None:
        self._loop.call_soon(self._run, worker, job, stop)

    def _run(self, worker: int, job: Job, stop: Stop) -> None:
        assert isinstance(job.executor, CpuExecutor)
        runs, continues = job.executor.run(job, stop), True
        while continues:
            completion = job.executor.report_next(job, runs)
            completion.worker, continues = worker, completion.outcome.continues
            self._heard(completion)

    def dead(self) -> str | None:
        return None

    def close(self, timeout_s: float) -> bool:
        return True


class Sink(asyncio.Transport):
    """A connection that keeps nothing. `missing`: answers still to come on all of them, then `whole` is told."""

    missing = 0
    whole: asyncio.Future[None]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if data.startswith(b"HTTP/1.1 "):
            Sink.missing -= 1
            if not Sink.missing:
                Sink.whole.set_result(None)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("the server closed a connection")

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def connections(count: int, make: Callable[[], HttpToolsProtocol]) -> list[HttpToolsProtocol]:
    made = [make() for _ in range(count)]
    for protocol in made:
        protocol.access_log = False
        protocol.connection_made(Sink())
    return made


class Cpu(NamedTuple):
    """What counts as a request's: `clock` reads it, `settle` waits for what is still to be done for requests."""

    clock: Callable[[], int] = time.thread_time_ns
    settle: Callable[[], None] = lambda: None


LOOP = Cpu()  # the event loop's thread alone


async def turns(protocols: list[HttpToolsProtocol], request: bytes, count: int, cpu: Cpu = LOOP) -> float:
    """CPU microseconds per request: so often, one request on each connection at once."""
    loop = asyncio.get_running_loop()
    begin = cpu.clock()
    for _ in range(count):
        Sink.missing = len(protocols)
        Sink.whole = loop.create_future()
        for protocol in protocols:
            protocol.data_received(request)
        await Sink.whole
    cpu.settle()
    return (cpu.clock() - begin) / 1e3 / count / len(protocols)


def on_the_wire(request: PreparedRequest) -> bytes:
    lines = (("Host", "127.0.0.1:8000"), ("Content-Length", str(len(request.body))), *request.headers)
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"POST {request.path} HTTP/1.1\r\n{head}\r\n".encode() + request.body


class Form(NamedTuple):
    """One form of request, and connections to send it on: to the server, and to the bare echo."""

    name: str
    ours: list[HttpToolsProtocol]
    theirs: list[HttpToolsProtocol]
    request: bytes


async def forms(engine: Engine, count: int, **traced: Any) -> list[Form]:
    """With a queue of one request all calls but one of a turn are refused with 429."""
    source = ModelSource("echo", 1, SETS["demo"]["echo"])
    served = await engine.start(load(source, {"policy": "no_wait"}))  # no tables are solved beside it
    narrow = await engine.start(load(source, {"policy": "no_wait", "max_queue": 1}))
    found = []
    for name, make, host in (
        ("JSON", bodies.v2_json, served),
        ("binary", bodies.v2_binary, served),
        ("refused", bodies.v2_json, narrow),
    ):
        form = Form(name, *protocols(host, count, **traced), on_the_wire(make(METADATA)))
        await turns(form.ours, form.request, 50)
        await turns(form.theirs, form.request, 50)
        found.append(form)
    return found


async def measure(options: argparse.Namespace) -> None:
    """Each form of request in turn."""
    torch.set_num_threads(1)
    device = OnLoop((32,), 1, 2)
    traced: dict[str, Any] = {}
    clock = time.process_time_ns if options.threads else time.thread_time_ns
    cpu = Cpu(clock)
    if options.trace is not None:
        from experiments.costs.traced import Traced  # which needs the extra `otel`

        tracing = Traced(options.trace)
        traced, cpu = {"tracer": tracing.tracer}, Cpu(clock, tracing.settle)
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        found = await forms(engine, options.connections, **traced)
        process.tune_garbage_collector()
        for form in found:
            await show(form, options, cpu)


async def show(form: Form, options: argparse.Namespace, cpu: Cpu) -> None:
    found: dict[str, list[float]] = {"starling": [], "bare echo": []}
    for _ in range(options.rounds):
        found["starling"].append(await turns(form.ours, form.request, options.turns, cpu))
        found["bare echo"].append(await turns(form.theirs, form.request, options.turns))
    for contender, values in found.items():
        print(f"{form.name}, {contender}: {median(values):.2f} us ({min(values):.2f} to {max(values):.2f})")


def protocols(served: Served, count: int, **traced: Any) -> tuple[list[HttpToolsProtocol], list[HttpToolsProtocol]]:
    """So many connections to the server, and to the bare echo."""
    shared, loop = ServerState(), asyncio.get_running_loop()
    resources = Resources(LIMITS, auth=Auth(), connections=lambda: len(shared.connections), **traced)
    path = HttpApp(cast("Any", bare_app), resources)
    state = {"catalog": SimpleNamespace(serving={("echo", None): served}), "health": SimpleNamespace(closing=False)}
    configs = [
        uvicorn.Config(
            app, interface="asgi3", log_config=None, access_log=False, proxy_headers=False, timeout_keep_alive=600
        )
        for app in (path, bare_app)
    ]
    for config in configs:
        config.load()
    make = partial(
        HttpProtocol, configs[0], shared, state, loop, take=path.fast_path.take, body_timeout_s=30,
        idle=IdleConnections(600, 2 * count), hold=resources.bodies.add,
    )  # fmt: skip
    ours = connections(count, make)
    theirs = connections(count, lambda: HttpToolsProtocol(configs[1], shared, {}, loop))
    return ours, theirs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs.in_process", description=__doc__)
    parser.add_argument("--connections", type=int, default=64, help="that send at once [64]")
    parser.add_argument("--turns", type=int, default=200, help="requests on each, a round [200]")
    parser.add_argument("--rounds", type=int, default=7, help="[7]")
    parser.add_argument("--trace", type=float, metavar="RATIO", help="trace this part of the calls [none]")
    parser.add_argument("--threads", action="store_true", help="count all threads, not only the event loop's")
    options = parser.parse_args(arguments)
    uvloop.run(measure(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
