"""Runs a closed loop of one request with the load generator of `starling bench`, in its own process.

A client that shares the server's interpreter lock measures itself. So `run` starts `python -m
loadtest.generator.closed_loop`, which reads a pickled load from stdin and writes the pickled result to stdout.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import subprocess
import sys

import numpy as np

from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.generator import client
from loadtest.generator.client import ConnectionPool
from loadtest.generator.drive import ClosedLoop
from loadtest.generator.http import Response
from loadtest.generator.load import REFUSED, TIMEOUT_S, Load, LoadError, LoadResult, TimedAnswer
from loadtest.generator.plan import Target
from loadtest.generator.run import in_loop, without_collections
from loadtest.generator.stats import Repeat, collect, percentile

_START_S = 20.0  # the interpreter's own start on a busy machine
_RIGHT, _WRONG = 0, 1  # numbers of answers
_FAULTS = ("", "wrong answer")  # by number


async def drive(load: Load) -> LoadResult:
    """Run `load` in the current event loop."""

    def note(pick: int, response: Response) -> int:
        return _RIGHT if load.answer is None or response.body == load.answer else _WRONG

    target = Target.parse(f"http://{LOOPBACK}:{load.port}")
    payload = load.request.encode(load.port)
    async with ConnectionPool(target, [payload], note, limit=load.connections, timeout_s=TIMEOUT_S) as pool:
        # First one request on each connection, so that opening connections is not measured.
        opened = ClosedLoop(pool, itertools.repeat(0), load.connections, 0)
        await opened.run()
        loop = ClosedLoop(pool, itertools.repeat(0), load.connections, load.seconds)
        with without_collections():
            await loop.run()
    result = result_of(collect(loop.log, loop.start_ns, load.seconds, 0, _FAULTS, ()), load)
    return with_refusals(result, loop.log, loop.start_ns) if load.refusals else result


def result_of(repeat: Repeat, load: Load) -> LoadResult:
    """The result of the load's seconds. Later answers do not count, since fewer and fewer connections are busy then."""
    ended_ns = repeat.intended_ns + repeat.latency_ns
    counted = (repeat.latency_ns >= 0) & (ended_ns <= load.seconds * 1e9)
    latency = repeat.latency_ns[counted]
    p50, p90, p99 = (percentile(latency, share) for share in (0.5, 0.9, 0.99))
    columns = [repeat.latency_ns, repeat.server_ns, repeat.queue_ns, repeat.compute_ns]
    told = np.flatnonzero(counted & (repeat.server_ns >= 0))[: load.timed]
    times = np.array([column[told] for column in columns]).T / 1e6
    return LoadResult(
        requests=len(latency),
        seconds=load.seconds,
        p50_ms=float("nan") if p50 is None else p50,
        p90_ms=float("nan") if p90 is None else p90,
        p99_ms=float("nan") if p99 is None else p99,
        failed=dict(repeat.errors),
        timed=[
            TimedAnswer(latency, total, queued, compute, batch)
            for (latency, total, queued, compute), batch in zip(
                times.tolist(), repeat.batch[told].tolist(), strict=True
            )
        ],
    )


def with_refusals(result: LoadResult, log: list[client.TimedRequest], start_ns: int) -> LoadResult:
    """The result with the answers of status 429 within its seconds counted, and none of them among the failures."""
    refused = sum(one.status == REFUSED and one.ended - start_ns <= result.seconds * 1e9 for one in log)
    failed = {kind: count for kind, count in result.failed.items() if kind != f"status {REFUSED}"}
    return dataclasses.replace(result, refused=refused, failed=failed)


def run(load: Load) -> LoadResult:
    """Run `load` in a child process and wait for it. Raises LoadError if the process fails."""
    command = [sys.executable, "-m", "loadtest.generator.closed_loop"]
    limit_s = load.seconds + TIMEOUT_S + _START_S
    try:
        done = subprocess.run(
            command, input=pickle.dumps(load), capture_output=True, timeout=limit_s, cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"the load client did not end within {limit_s:g} s") from error
    if done.returncode:
        raise LoadError(f"the load client failed: {done.stderr.decode().strip()[-500:]}")
    result: LoadResult = pickle.loads(done.stdout)
    return result


def main() -> None:
    result = in_loop(drive(pickle.load(sys.stdin.buffer)))
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    main()
