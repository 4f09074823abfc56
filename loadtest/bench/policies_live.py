"""Policies against one another over HTTP: `python -m loadtest.bench.policies_live`. Writes docs/bench/policies-live.md.

For each model its batch times are measured, then its server's own peak. At 30 and 70 % of that peak every policy gets
the very same instants of the same seeds, one policy after the other within each seed, so that a change of the machine's
mood meets all. All have the same device, `--at-once` units. `window` has the delay that serves the most rows a second
of five. What is compared, and how sure it is, is in policies_live_figures.py.

Last the control: a convolutional network, for which batches gain nothing on a CPU. Its device time per row under
`adaptive` stands beside that of batches of one row.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from app.bench.peak import Try, find_peak
from app.bench.plan import Plan
from app.bench.run import Lagging, Session, in_loop
from app.bench.stats import Repeat
from app.scheduler.policies.ebird import Ebird
from app.settings import cpu_cores

from . import machine
from . import policies_live_figures as figures
from . import policies_live_page as page
from .load import LOOPBACK, ROOT
from .servers import Server, ServerError, starling
from .simulation import command
from .simulation.section import row

DOCS = ROOT / "docs" / "bench"
ZOO = ROOT / "app" / "models" / "zoo"
MODELS = ("mlp", "encoder")
SHARES = (0.3, 0.7)  # of the peak
DELAYS_MS = (1, 2, 5, 10, 20)
CONTROL = "cnn"  # resnet18 is none: its 47 MB of weights make two rows cheaper than one (docs/bench/profiles)
SLO_MS = 200.0
IN_FLIGHT = 64  # while the delay of `window` is chosen
LARGEST = 32  # rows
LAST = "preferred"  # within a seed: it may leave the longest backlog
LOST = 3  # seeds with a mean beyond SLO_MS, after which a policy gets no more of that load
TIMEOUT_S = 60.0  # of a request: the backlog of a run that was too much is waited for, not cut off

#: For the estimate, seconds: to start a server; to find a peak; between runs; warm-up of one policy at one load.
_START_S, _PEAK_S, _BETWEEN_S, _WARM_S = 5.0, 80.0, 0.8, 2.5


def contenders(at_once: int, bound: int, delay_ms: int) -> dict[str, tuple[str, ...]]:
    """The flags of each policy, so that each runs `at_once` units at once.

    `ebird` brings its own workers, and the engine runs `bound` of them, cores // threads: no flag makes it fewer. Where
    that is another device it is left out.
    """
    workers = ("--workers", ",".join([str(LARGEST)] * at_once))
    found = {
        "adaptive": ("--policy", "adaptive", *workers),
        "no_wait": ("--policy", "no_wait", *workers),
        f"window, {delay_ms} ms": ("--policy", "window", "--max-delay-ms", str(delay_ms), *workers),
        "preferred": ("--policy", "preferred", *workers),
    }
    if at_once == min(bound, len(Ebird.workers(LARGEST))):
        found["ebird"] = ("--policy", "ebird")
    return found


def order(names: Sequence[str], index: int) -> list[str]:
    """Who comes when at seed `index`: another one first each time, LAST last."""
    turning = [name for name in names if name != LAST]
    turn = index % len(turning)
    return [*turning[turn:], *turning[:turn], *(name for name in names if name == LAST)]


def lost(repeats: Sequence[Repeat]) -> bool:
    """A policy that was overloaded so often is so at the next seed, too, and costs the time to drain it."""
    return sum(figures.mean_ms(one) > SLO_MS for one in repeats) >= LOST


class Contest:
    """One model: a server for each policy, all up at once, all but one idle at any time."""

    def __init__(self, source: Path, chosen: argparse.Namespace, folder: str, say: Console) -> None:
        self.model = source.name
        self.source = f"{self.model}={source}"
        self.chosen = chosen
        self.folder = folder
        self.say = say

    def serve(self, *flags: str) -> Server:
        return starling(
            ("--model", self.source, "--max-batch", str(LARGEST), "--threads", str(self.chosen.threads),
             "--profile-dir", self.folder, "--profile-budget-s", "0", *flags)
        )  # fmt: skip

    def plan(self, server: Server, **options: Any) -> Plan:
        return Plan(
            url=f"http://{LOOPBACK}:{server.port}", model=self.model, payload="binary", seed=self.chosen.seed,
            duration_s=self.chosen.seconds, repeats=self.chosen.repeats, max_lag_ms=self.chosen.max_lag_ms,
            timeout_s=TIMEOUT_S, **options,
        )  # fmt: skip

    def profile(self, at_once: int) -> dict[int, float]:
        """Measured into the servers' folder, where they look for it; ms by batch size, one unit alone."""
        together = ("--workers", str(at_once))
        ran = command.starling(
            "profile", self.model, "--model", self.source, "--max-batch", str(LARGEST), "--threads",
            str(self.chosen.threads), *together, "--budget-s", str(self.chosen.budget), "--no-suggest", "--json",
            profile_dir=Path(self.folder),
        )  # fmt: skip
        return {int(size): float(ms) for size, ms in ran.cell["batch_ms"].items()}

    def peak(self, server: Server) -> float:
        found = in_loop(find_peak(replace(self.plan(server), duration_s=5, repeats=1), SLO_MS, self._told))
        rate = found.result.plan.rate
        assert rate is not None
        return rate

    def _told(self, tried: Try) -> None:
        self.say.print(f"{self.model}: peak: {tried.rate:.0f}/s {tried.why or 'kept'}", markup=False)

    def delay_ms(self) -> int:
        """The delay of `window` that serves the most rows a second, all requests there are in flight."""
        rows: dict[int, float] = {}
        for delay in DELAYS_MS:
            flags = next(
                flags
                for name, flags in contenders(self.chosen.at_once, self.chosen.bound, delay).items()
                if name.startswith("window")
            )
            with self.serve(*flags) as server:
                server.wait_ready()
                ran = in_loop(_once(self.plan(server, concurrency=IN_FLIGHT)))
            rows[delay] = len(ran.completed) / ran.elapsed_s
            self.say.print(
                f"{self.model}: window of {delay} ms: {rows[delay]:.0f} rows/s, {figures.busy([ran]):.2f} units at "
                f"once in {figures.rows_a_batch([ran]):.1f} rows a batch", markup=False, soft_wrap=True,
            )  # fmt: skip
        return max(rows, key=lambda delay: rows[delay])

    def run(self, found: page.Found) -> None:
        """Both loads, into `found`."""
        flags = contenders(self.chosen.at_once, self.chosen.bound, self.delay_ms())
        with ExitStack() as stack:
            servers = {name: stack.enter_context(self.serve(*given)) for name, given in flags.items()}
            for server in servers.values():
                server.wait_ready()
            found.peaks[self.model] = self.peak(servers["adaptive"])
            for share in SHARES:
                rate = share * found.peaks[self.model]
                runs = in_loop(self.alternate(servers, rate))
                cells = figures.compare(self.model, share, rate, runs)
                found.cells += cells
                found.tails.append(figures.tail(self.model, share, runs))
                for line in [*(row(page.texts(cell)) for cell in cells), *page.verdicts(cells, found.tails[-1:])]:
                    self.say.print(line, markup=False, soft_wrap=True)

    async def alternate(self, servers: dict[str, Server], rate: float) -> dict[str, list[Repeat]]:
        """All policies at each seed before the next seed."""
        runs: dict[str, list[Repeat]] = {name: [] for name in servers}
        async with AsyncExitStack() as stack:
            sessions = {}
            for name, server in servers.items():
                sessions[name] = await stack.enter_async_context(Session(self.plan(server, rate=rate)))
                await sessions[name].warm()
                await sessions[name].settle()
            for index in range(self.chosen.repeats):
                for name in order(list(servers), index):
                    if lost(runs[name]):
                        continue
                    session = sessions[name]
                    runs[name].append(await session.once(session.plan, session.plan.seed + index, self.chosen.seconds))
                    await session.settle()  # `once` has waited for all answers: nothing waits behind this one
        return runs


async def _once(plan: Plan) -> Repeat:
    async with Session(plan) as session:
        await session.warm()
        return await session.once(plan, plan.seed, plan.duration_s)


def halved(chosen: argparse.Namespace) -> argparse.Namespace:
    """Twice as many seeds of half the length: the machine's speed drifts less between the two of a pair."""
    return argparse.Namespace(**{**vars(chosen), "repeats": 2 * chosen.repeats, "seconds": chosen.seconds / 2})


def control(chosen: argparse.Namespace, folder: str, say: Console) -> figures.Control:
    """Device time per row at 30 % of the peak of batches of one row, those and `adaptive` in alternation."""
    chosen = halved(chosen)
    contest = Contest(ROOT / "loadtest" / "bench" / "models" / CONTROL, chosen, folder, say)
    per_row = {size: ms / size for size, ms in contest.profile(1).items()}
    alone = ("--workers", str(LARGEST))
    with contest.serve("--policy", "adaptive", *alone) as adaptive, contest.serve("--max-batch", "1", *alone) as single:
        for server in (adaptive, single):
            server.wait_ready()
        most = contest.peak(single)
        runs = in_loop(contest.alternate({"adaptive": adaptive, "batch 1": single}, SHARES[0] * most))
    return figures.control(CONTROL, most, SHARES[0] * most, runs, per_row)


def estimate_s(chosen: argparse.Namespace) -> float:
    """How long the whole command takes, a little more than less: as if every policy had all its seeds."""

    def load_s(chosen: argparse.Namespace) -> float:
        return float(chosen.repeats * (chosen.seconds + _BETWEEN_S) + _WARM_S)

    alone_s = chosen.budget + _START_S + _PEAK_S
    contest_s = len(SHARES) * load_s(chosen) + _START_S
    model_s = alone_s + len(DELAYS_MS) * (_START_S + _WARM_S + chosen.seconds)
    model_s += len(contenders(chosen.at_once, chosen.bound, 0)) * contest_s
    control_s = 0.0 if chosen.no_control else alone_s + 2 * (_START_S + load_s(halved(chosen)))
    return float(len(chosen.models) * model_s + control_s)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """What was chosen, with `bound`, the units at once that cores and threads allow. Exits at what cannot be."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.policies_live", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), help=f"[{' '.join(MODELS)}]")
    parser.add_argument("--seconds", type=float, default=7.0, help="length of a run [7]")
    parser.add_argument("--repeats", type=int, default=8, help="seeds at each load [8]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a unit [1]")
    parser.add_argument("--at-once", type=int, help="units at once, of every policy [cores // threads]")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds to measure batch times [50]")
    parser.add_argument("--max-lag-ms", type=float, default=2.0, help="of the load generator itself, at the peak [2]")
    parser.add_argument("--no-control", action="store_true", help=f"leave out {CONTROL}")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for the page and the JSON")
    chosen = parser.parse_args(arguments)
    chosen.cores = cpu_cores()
    if not 1 <= chosen.threads <= chosen.cores:
        parser.error(f"--threads: expected 1 to {chosen.cores}, the cores, got {chosen.threads}")
    chosen.bound = chosen.cores // chosen.threads
    chosen.at_once = chosen.bound if chosen.at_once is None else chosen.at_once
    if not 1 <= chosen.at_once <= chosen.bound:
        parser.error(f"--at-once: expected 1 to {chosen.bound}, cores over threads, got {chosen.at_once}")
    return chosen


def main(arguments: Sequence[str]) -> int:
    chosen = options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds what stops the servers
    say = Console(stderr=True, highlight=False)
    say.print(f"takes about {estimate_s(chosen) / 60:.0f} minutes", markup=False)
    facts = {
        "command": " ".join(["`python -m loadtest.bench.policies_live", *arguments]) + "`",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **machine.describe(),
    }
    found = page.Found()
    try:
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
            for model in chosen.models:
                contest = Contest(ZOO / model, chosen, folder, say)
                contest.profile(chosen.at_once)
                contest.run(found)
            words = page.words(chosen, SLO_MS, LOST)
            page.write(found, chosen, words, facts)  # half an hour's work, kept if the control fails
            if not chosen.no_control:
                found.control = control(chosen, folder, say)
                say.print(page.control_text(found.control), markup=False)
                page.write(found, chosen, words, facts)
    except (Lagging, ValueError, ServerError, command.CommandError) as error:
        say.print(str(error), style="red", markup=False)
        return 1
    return int(found.missed)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the servers have been stopped on the way here
        sys.exit(130)
