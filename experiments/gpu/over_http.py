"""BERT-base over HTTP on one card: Starling, and servers made by hand, from one client in this process.

All servers are up; one at a time is asked, in the order A B B A. A request is one row of 128 int32 tokens in binary.
Client and servers have cores of their own where there are more than four.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.common.folders import vector, write_model
from experiments.common.loads import Answered, Answers, post, run_once
from experiments.gpu.blocks import Block, Data
from experiments.gpu.networks import BASE, TINY, TOKENS
from loadtest.common.servers import READY_LIMIT_S, READY_PATH, MeasurementError, Server, free_port, starling
from loadtest.generator.payload import v2_body
from loadtest.generator.run import in_loop

_OWN_CORES = 3  # of the client
_TRY_S = 3.0  # for each server, even if others took all the time
_LOADS_S = 25.0
_RUN_S = 2.0
_SHARE = 0.5  # of the slowest server's requests a second: the rate at which latencies are compared


class Contender(NamedTuple):
    """`how`: of the server made by hand, "" for Starling."""

    path: str
    ready: str
    how: str = ""


CONTENDERS = {
    "Starling": Contender("/v2/models/bert/infer", READY_PATH),
    "FastAPI, lock, torch": Contender("/predict", "/health", "eager"),
    "FastAPI, lock, graph of one": Contender("/predict", "/health", "graph"),
}


def measure(block: Block) -> None:
    in_flight = 8 if block.quick else 128
    block.keep(in_flight=in_flight, runs={}, latency={})
    with tempfile.TemporaryDirectory(prefix="starling-gpu-") as folder, ExitStack() as stack:
        servers = {name: stack.enter_context(_starting(block, name, Path(folder))) for name in CONTENDERS}
        _wait(block, servers)
        block.found["cores"] = dict(zip(("client", "servers"), map(len, _cores()), strict=True))
        order = [*servers, *reversed(servers)]
        for name in order:
            if block.fits(f"{name}, requests/s", 2 * _RUN_S):
                with block.noting(name):
                    block.found["runs"].setdefault(name, []).append(_run(block, name, servers[name], in_flight))
        if "Starling" in servers:
            block.keep(server_log=servers["Starling"].last_output(4000))
        rates = [most for runs in block.found["runs"].values() if (most := max(run["requests_s"] for run in runs))]
        for name in servers:
            if rates and block.fits(f"{name}, latency", _RUN_S + 1):
                with block.noting(name):
                    block.found["latency"][name] = _run(block, name, servers[name], 64, _SHARE * min(rates))


# servers


@contextmanager
def _starting(block: Block, name: str, folder: Path) -> Iterator[Server]:
    """A server that has been started."""
    how = CONTENDERS[name].how
    own, others = _cores()
    with ExitStack() as stack:
        os.sched_setaffinity(0, others)  # which the server inherits
        try:
            if how:
                port, size = free_port(), "tiny" if block.quick else "base"
                command = [sys.executable, "-m", "experiments.gpu.fastapi_app", str(port), block.device, how, size]
                server = stack.enter_context(Server(command, port))
            else:
                write_bert(folder / "bert", block.quick)
                device = ["--device", block.device, *(["--precision", "fp16"] if block.cuda else [])]
                flags = ["--model", f"bert={folder / 'bert'}", *device, "--profile-dir", str(folder / "profiles")]
                server = stack.enter_context(starling([*flags, "--no-pages"]))
        finally:
            os.sched_setaffinity(0, own)
        yield server


def _cores() -> tuple[set[int], set[int]]:
    """The client's cores, and the servers'."""
    cores = sorted(os.sched_getaffinity(0) | _ALL)
    if len(cores) <= 4:
        return set(cores), set(cores)
    return set(cores[:_OWN_CORES]), set(cores[_OWN_CORES:])


_ALL = os.sched_getaffinity(0)


def write_bert(folder: Path, quick: bool) -> None:
    """A model folder of the same network."""
    write_model(
        folder, "experiments.gpu.networks:whole_bert",
        [vector("ids", TOKENS, datatype="INT32", minimum=0, maximum=30_521)],
        [vector("y", (TINY if quick else BASE).width)],
        batching={"max_batch": 4 if quick else 32}, kwargs={"quick": quick}, row_check="off",
    )  # fmt: skip


def _wait(block: Block, servers: dict[str, Server]) -> None:
    """Wait until all are ready; one that is not is noted, and left out."""
    until = time.perf_counter() + (READY_LIMIT_S if block.quick else block.left_s - _LOADS_S)
    for name, server in list(servers.items()):
        try:
            limit_s = max(until, time.perf_counter() + _TRY_S) - server.started_s
            server.wait_ready(CONTENDERS[name].ready, limit_s)
        except (MeasurementError, OSError) as exc:
            block.found.setdefault("not_started", {})[name] = str(exc)[-600:]
            del servers[name]
    time.sleep(block.seconds(2.0))  # Starling measures its batches while nobody asks
    block.keep()


# the client


def _payload(path: str, port: int, seed: int) -> bytes:
    ids = np.random.default_rng([seed, 4]).integers(1, 10_000, (1, TOKENS), dtype=np.int32)
    if not path.startswith("/v2/"):
        return post(path, port, ids.tobytes(), {})
    headers, body = v2_body([("ids", "INT32", ids.shape, ids)], {}, binary=True)
    return post(path, port, body, headers)


def _run(block: Block, name: str, server: Server, in_flight: int, rate: float | None = None) -> Data:
    """Requests a second with so many in flight, or latencies at a rate.

    `client_busy`: the share of a core that the client used; near 1 the client is the bound.
    """
    payloads = [_payload(CONTENDERS[name].path, server.port, seed) for seed in range(16)]
    answers, seconds = Answers(), block.seconds(_RUN_S)

    def load(seconds: float, rate: float | None) -> Answered:
        return in_loop(run_once(payloads, server.port, answers, seconds, rate, 5, connections=in_flight))

    load(seconds / 4, None)
    begun, cpu = time.monotonic(), time.process_time()
    found = load(seconds, rate).figures(seconds)
    busy = (time.process_time() - cpu) / (time.monotonic() - begun)
    short = sum(len(body) < 4 * (TINY if block.quick else BASE).width for body in answers.first.values())
    faults = {"failed": found["failed"], "no answers": short} if found["failed"] or short else {}
    return {
        **({} if rate is None else {"rate": round(rate, 1)}), **({"faults": faults} if faults else {}),
        "requests_s": round(found["per_s"], 1), "client_busy": round(busy, 2),
        **{key: found[key] for key in ("mean_ms", "p50_ms", "p99_ms")},
    }  # fmt: skip
