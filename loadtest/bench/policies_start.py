"""Compares `adaptive` with `no_wait` after an ordinary start: `python -m loadtest.bench.policies_start`.

Servers of both policies start with empty folders of profiles and are left alone, so that each measures its model while
it is idle. Under `busy` a process keeps one core busy from before the start until the load begins. Then both get the
same arrivals of the same seeds in turns, at shares of the peak of `no_wait`: one worker of one thread, binary, Poisson.
Prints the ratio of the means, with Student's 95 % interval over the rounds of the log ratio. Stores nothing.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from rich.console import Console

from app.bench.run import in_loop
from app.bench.stats import Repeat, interval
from loadtest.common.experiment import EXPECTED, clocked
from loadtest.common.paths import ROOT, ZOO
from loadtest.common.servers import Server

from .policies_live import LARGEST, ModelRun
from .policies_live_statistics import mean_ms, pairs

SOURCES = {"mlp": ZOO / "mlp", "encoder": ZOO / "encoder", "digits": ROOT / "app" / "models" / "demo" / "digits"}
SHARES = (0.3, 0.6, 0.85)
STARTS = ("quiet", "busy")
POLICIES = ("adaptive", "no_wait")
_BUDGET_S = 5.0  # the server's default
_TARGET = 1.01


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """A process that keeps a core busy meanwhile, if `busy`."""
    if not busy:
        yield
        return
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def told(runs: Mapping[str, Sequence[Repeat]]) -> str:
    """The ratio of the means of `adaptive` and `no_wait`, and its interval."""
    both = [(mean_ms(ours), mean_ms(other)) for ours, other in pairs(runs["adaptive"], runs["no_wait"])]
    logs = [math.log(ours / other) for ours, other in both]
    middle, half = sum(logs) / len(logs), interval(logs) or math.inf
    low, ratio, high = (math.exp(one) for one in (middle - half, middle, middle + half))
    ours, other = (sum(one) / len(both) for one in zip(*both, strict=True))
    verdict = "met" if ratio <= _TARGET else "within the interval" if low <= _TARGET else "MISSED"
    return f"{ratio:.3f} ({low:.3f} to {high:.3f}), {ours:.2f} and {other:.2f} ms, {verdict}"


def compare(
    model: str, start: str, chosen: argparse.Namespace, peaks: dict[str, float], say: Callable[[str], None]
) -> None:
    """Start two servers and compare them at each share of the peak."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder, ExitStack() as stack:
        run = ModelRun(SOURCES[model], chosen, folder, say)
        servers: dict[str, Server] = {}
        with neighbour(start == "busy"):
            for policy in POLICIES:
                own = ("--policy", policy, "--workers", str(LARGEST), "--profile-budget-s", str(_BUDGET_S),
                       "--profile-dir", f"{folder}/{policy}")  # fmt: skip
                servers[policy] = stack.enter_context(run.serve(*own))
                servers[policy].wait_ready()
                time.sleep(chosen.idle)  # one after the other: they would disturb each other's measurements
        if model not in peaks:
            peaks[model] = run.peak(servers["no_wait"])
        for share in chosen.shares:
            runs = in_loop(run.alternate(servers, share * peaks[model]))
            say(f"{model}, {start}, {share:g} of {peaks[model]:.0f}/s: adaptive / no_wait {told(runs)}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.policies_start", description=__doc__)
    parser.add_argument("--models", nargs="*", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--starts", nargs="*", choices=STARTS, default=list(STARTS))
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES), help="of the peak [0.3 0.6 0.85]")
    parser.add_argument("--rounds", dest="repeats", type=int, default=10, help="seeds at each load [10]")
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a run [2.5]")
    parser.add_argument("--idle", type=float, default=9.0, help="seconds that a server is left alone at first [9]")
    parser.add_argument("--peaks", nargs="*", type=float, default=[], help="requests/s of each model [searched for]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--max-lag-ms", type=float, default=5.0, help="of the load generator, at the peak [5]")
    parser.set_defaults(threads=1)
    return parser.parse_args(list(arguments))


def main(arguments: Sequence[str]) -> int:
    chosen = parse(arguments)
    console = Console(highlight=False)
    say, peaks = clocked(console), dict(zip(chosen.models, chosen.peaks, strict=False))
    runs = len(chosen.models) * len(chosen.starts) * len(chosen.shares) * len(POLICIES) * chosen.repeats
    starts = len(chosen.models) * len(chosen.starts) * len(POLICIES) * (chosen.idle + 5)
    say(f"takes about {(runs * (chosen.seconds + 0.6) + starts) / 60 + len(chosen.models):.0f} minutes")
    try:
        for model in chosen.models:
            for start in chosen.starts:
                compare(model, start, chosen, peaks, say)
    except EXPECTED as error:
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
