"""BERT-base over HTTP on one card: Starling, and servers made by hand, from one client in this process.

All servers are up; one at a time is asked, in the order A B B A. A request is one row of 128 int32 tokens in binary.
Client and servers have cores of their own where there are more than four.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
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
from experiments.gpu.blocks import Block, Data
from experiments.gpu.networks import BASE, TINY, TOKENS
from loadtest.common.servers import READY_LIMIT_S, MeasurementError, Server, free_port, starling
from loadtest.generator.client import ConnectionPool, TimedRequest
from loadtest.generator.drive import ClosedLoop, OpenLoop
from loadtest.generator.http import Response
from loadtest.generator.plan import Target
from loadtest.generator.run import in_loop, without_collections

_OWN_CORES = 3  # of the client
_TRY_S = 3.0  # for each server, even if others took all the time
_LOADS_S = 25.0
_RUN_S = 2.0
_SHARE = 0.5  # of the slowest server's requests a second: the rate at which latencies are compared


Asked = tuple[Server, str]  # a server, and the path of its requests


class Contender(NamedTuple):
    """`app`: a module of `apps`, "" for Starling; `needs`: a package that may not be there. `json`: how it is asked."""

    app: str
    how: str = ""
    needs: str = "fastapi"
    path: str = "/predict"
    json: bool = False


CONTENDERS = {
    "Starling": Contender(""),
    "FastAPI, lock, torch": Contender("fastapi_app", "eager"),
    "FastAPI, lock, graph of one": Contender("fastapi_app", "graph"),
    "mosec": Contender("mosec_app", needs="mosec", path="/inference"),
    "LitServe, JSON": Contender("litserve_app", needs="litserve", json=True),
}


def measure(block: Block) -> None:
    names = [name for name, one in CONTENDERS.items() if importlib.util.find_spec(one.needs) is not None]
    in_flight = 8 if block.quick else 128
    block.keep(in_flight=in_flight, runs={}, latency={}, absent=[name for name in CONTENDERS if name not in names])
    with tempfile.TemporaryDirectory(prefix="starling-gpu-") as folder, ExitStack() as stack:
        servers: dict[str, Asked] = {}
        for name in names:
            servers[name] = stack.enter_context(_starting(block, name, Path(folder)))
        _wait(block, servers)
        block.found["cores"] = dict(zip(("client", "servers"), map(len, _cores()), strict=True))
        order = [*servers, *reversed(servers)]
        for name in order:
            if block.fits(f"{name}, requests/s", 2 * _RUN_S):
                with block.noting(name):
                    block.found["runs"].setdefault(name, []).append(_run(block, name, servers[name], in_flight))
        if "Starling" in servers:
            block.keep(server_log=servers["Starling"][0].last_output(4000))
        rates = [most for runs in block.found["runs"].values() if (most := max(run["requests_s"] for run in runs))]
        for name in servers:
            if rates and block.fits(f"{name}, latency", _RUN_S + 1):
                with block.noting(name):
                    block.found["latency"][name] = _run(block, name, servers[name], 64, _SHARE * min(rates))


# servers


@contextmanager
def _starting(block: Block, name: str, folder: Path) -> Iterator[Asked]:
    """A server that has been started, and the path of its requests."""
    one = CONTENDERS[name]
    own, others = _cores()
    with ExitStack() as stack:
        os.sched_setaffinity(0, others)  # which the server inherits
        try:
            if not one.app:
                write_bert(folder / "bert", block.quick)
                device = ["--device", block.device, *(["--precision", "fp16"] if block.cuda else [])]
                flags = ["--model", f"bert={folder / 'bert'}", *device, "--profile-dir", str(folder / "profiles")]
                server = stack.enter_context(starling([*flags, "--no-pages"]))
                path = "/v2/models/bert/infer"
            else:
                port, path = free_port(), one.path
                given = [str(port), block.device, one.how or "batch", "tiny" if block.quick else "base"]
                command = [sys.executable, "-m", f"experiments.gpu.apps.{one.app}", *given]
                server = stack.enter_context(Server(command, port))
        finally:
            os.sched_setaffinity(0, own)
        yield server, path


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


def _wait(block: Block, servers: dict[str, Asked]) -> None:
    """Wait until all are ready; one that is not is noted, and left out."""
    until = time.perf_counter() + (READY_LIMIT_S if block.quick else block.left_s - _LOADS_S)
    for name, (server, _) in list(servers.items()):
        try:
            limit_s = max(until, time.perf_counter() + _TRY_S) - server.started_s
            ready = "/v2/health/ready" if not CONTENDERS[name].app else "/metrics" if name == "mosec" else "/health"
            server.wait_ready(ready, limit_s)
        except (MeasurementError, OSError) as exc:
            block.found.setdefault("not_started", {})[name] = str(exc)[-600:]
            del servers[name]
    time.sleep(block.seconds(2.0))  # Starling measures its batches while nobody asks
    block.keep()


# the client


def _payload(path: str, authority: str, seed: int, as_json: bool) -> bytes:
    ids = np.random.default_rng([seed, 4]).integers(1, 10_000, (1, TOKENS), dtype=np.int32)
    row, kind = (json.dumps({"ids": ids[0].tolist()}).encode(), "json") if as_json else (ids.tobytes(), "octet-stream")
    lines = [f"Content-Type: application/{kind}"]
    if path.startswith("/v2/"):
        tensor = {
            "name": "ids",
            "datatype": "INT32",
            "shape": [1, TOKENS],
            "parameters": {"binary_data_size": len(row)},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        lines.append(f"Inference-Header-Content-Length: {len(head)}")
        row = head + row
    lines.append(f"Content-Length: {len(row)}")
    return "\r\n".join([f"POST {path} HTTP/1.1", f"Host: {authority}", *lines, "", ""]).encode() + row


def _run(block: Block, name: str, asked: Asked, in_flight: int, rate: float | None = None) -> Data:
    """Requests a second with so many in flight, or latencies at a rate."""
    server, path = asked
    target = Target.parse(server.url)
    payloads = [_payload(path, target.authority, seed, CONTENDERS[name].json) for seed in range(16)]
    width = (TINY if block.quick else BASE).width * 4
    seconds = block.seconds(_RUN_S)

    def note(pick: int, response: Response) -> int:
        return int(len(response.body) < width)  # 1: not an answer

    async def ask() -> Data:
        async with ConnectionPool(target, payloads, note, limit=in_flight, timeout_s=10.0) as pool:
            with without_collections():
                picks = itertools.cycle(range(len(payloads)))
                await ClosedLoop(pool, picks, in_flight, seconds / 4).run()
                begun, cpu = time.monotonic(), time.process_time()
                drive: ClosedLoop | OpenLoop
                if rate is None:
                    drive = ClosedLoop(pool, picks, in_flight, seconds)
                else:
                    gaps = np.random.default_rng(5).exponential(1e9 / rate, max(3, round(rate * seconds)))
                    instants = np.cumsum(gaps).astype(np.int64).tolist()
                    drive = OpenLoop(pool, [TimedRequest(at, next(picks)) for at in instants])
                await drive.run()
            spent = time.monotonic() - begun
            return _figures(drive.log, spent, (time.process_time() - cpu) / spent, rate)

    return in_loop(ask())


def _figures(log: list[TimedRequest], seconds: float, busy: float, rate: float | None) -> Data:
    """`client_busy`: the share of a core that the client used; near 1 the client is the bound."""
    done = np.array([one.ended - one.intended for one in log if one.status == 200 and not one.answer], float) / 1e6
    found: Data = {"requests_s": round(len(done) / seconds, 1), "client_busy": round(busy, 2)}
    if rate is not None:
        found["rate"] = round(rate, 1)
    if len(done):
        p50, p99 = np.percentile(done, (50, 99))
        found |= {
            "mean_ms": round(float(done.mean()), 4),
            "p50_ms": round(float(p50), 4),
            "p99_ms": round(float(p99), 4),
        }
    if len(done) < len(log):
        wrong = next(one for one in log if one.status != 200 or one.answer)
        found["faults"] = {"count": len(log) - len(done), "first": wrong.fault or f"status {wrong.status}"}
    return found
