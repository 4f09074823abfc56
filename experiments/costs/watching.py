"""What the live page costs the server: `python -m experiments.costs.watching`.

One server, idle and then under a steady load of single requests; in each of the two, windows with one watcher of
/ui/events take turns with windows without. Prints the CPU time of the server as a share of one core: the median of
each, and the median of the differences of neighbouring windows with their quartiles, in which a machine that drifts has
less part. The load is open-loop, so that both kinds of window have as many requests.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError, Server, starling

_BODY = json.dumps([1.0, 2.0, 3.0, 4.0]).encode()
_SETTLE_S = 0.5  # for a watcher to be told of all models, which is no part of a window


class Compared(NamedTuple):
    """Shares of one core. The last three are of the difference that a watcher makes."""

    alone: float
    watched: float
    difference: float
    low: float
    high: float


def cpu_s(server: Server) -> float:
    """CPU seconds of all threads of the server, to the nanosecond; those that have ended are not among them."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def watcher(server: Server, received: list[int]) -> Iterator[None]:
    """A page that reads all events; their bytes are appended to `received`."""
    with socket.create_connection((LOOPBACK, server.port)) as stream:
        stream.sendall(b"GET /ui/events HTTP/1.1\r\nHost: x\r\n\r\n")

        def read() -> None:
            with suppress(ConnectionResetError):  # the server had more to say
                while chunk := stream.recv(1 << 20):
                    received.append(len(chunk))

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(_SETTLE_S)
        received.clear()
        yield
        stream.shutdown(socket.SHUT_RDWR)
        reader.join()


@contextmanager
def load(server: Server, per_s: float, connections: int) -> Iterator[list[int]]:
    """Requests at a fixed rate; one element for each that failed. A rate of 0 sends none."""
    over, failed = threading.Event(), list[int]()

    def send(offset: float) -> None:
        connection = HTTPConnection(LOOPBACK, server.port, timeout=30)
        due = time.monotonic() + offset
        while not over.wait(max(0.0, due - time.monotonic())):
            due += connections / per_s
            try:
                connection.request("POST", "/predict/echo", _BODY, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
            except (OSError, HTTPException):
                failed.append(0)
                connection.close()
            else:
                if answer.status != 200:
                    failed.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=send, args=(index / per_s,)) for index in range(connections if per_s > 0 else 0)]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        over.set()
        for thread in threads:
            thread.join()


def window(server: Server, seconds: float) -> float:
    """The share of one core that the server uses for so long."""
    begun, before = time.monotonic(), cpu_s(server)
    time.sleep(seconds)
    return (cpu_s(server) - before) / (time.monotonic() - begun)


def compare(server: Server, rounds: int, seconds: float, received: list[int]) -> Compared:
    """Windows with and without a watcher, in turns that change their order."""
    alone, watched = [], []
    for index in range(rounds):
        for watching in (True, False) if index % 2 else (False, True):
            if not watching:
                alone.append(window(server, seconds))
                continue
            with watcher(server, received):
                watched.append(window(server, seconds))
    low, middle, high = np.quantile(np.array(watched) - np.array(alone), (0.25, 0.5, 0.75))
    return Compared(float(np.median(alone)), float(np.median(watched)), float(middle), float(low), float(high))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs.watching", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="windows of each kind [12]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window [5]")
    parser.add_argument("--rate", type=float, action="append", help="requests per second; can be repeated [0, 200]")
    chosen = parser.parse_args(arguments)
    print(f"{'requests/s':>10}{'alone':>10}{'watched':>10}{'more':>10}   quartiles         bytes/s")
    with starling(("--threads", "1", "--profile-budget-s", "0")) as server:
        server.wait_ready()
        for rate in chosen.rate or [0.0, 200.0]:
            received: list[int] = []
            try:
                with load(server, rate, connections=8) as failed:
                    time.sleep(_SETTLE_S)
                    found = compare(server, chosen.rounds, chosen.seconds, received)
                if failed:
                    raise MeasurementError(f"{len(failed)} requests failed")
            except (MeasurementError, OSError) as error:
                print(error, file=sys.stderr)
                return 1
            shares = "".join(f"{share:10.2%}" for share in found[:3])
            print(f"{rate:10g}{shares}   {found.low:.2%} to {found.high:.2%}   {sum(received) / chosen.seconds:9.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
