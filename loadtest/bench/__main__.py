"""`python -m loadtest.bench [CASE ...]`, which is `make bench ARGS="CASE ..."`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path

from rich.console import Console

from loadtest.bench import http_page
from loadtest.bench.cases import CASES
from loadtest.bench.figures import Figure
from loadtest.bench.session import CLIENT, Plan, Session
from loadtest.common import experiment, machine
from loadtest.common.paths import DOCS
from loadtest.common.servers import MeasurementError

MAX_ROUNDS, MAX_SECONDS = 100, 60.0
LEAST_ROUNDS = 5  # of a run that replaces the committed page
FILE_WIDTH = 160  # columns of output that is not a terminal


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description="Measure this machine: the server against what there is to reach. About eight minutes in full.",
        epilog=" ".join(f"{name}: {(case.__doc__ or '').strip()}" for name, case in CASES.items()),
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} [all, in this order]")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each server [5]")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement [3]")
    parser.add_argument("--server", default="", help="command of the server to measure, such as another build's")
    parser.add_argument(
        "--out", type=Path, help="folder for http.md and http.json [docs/bench, for a run of all cases]"
    )
    parser.add_argument("--page", type=Path, metavar="FILE.json", help="make the page of these figures, run nothing")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if not (1 <= options.rounds <= MAX_ROUNDS and 0 < options.seconds <= MAX_SECONDS):
        parser.error(f"expected 1 to {MAX_ROUNDS} rounds of at most {MAX_SECONDS:g} seconds")
    return options


def command(options: argparse.Namespace) -> str:
    """The command line of the same run, without paths of this machine."""
    words = ["python -m loadtest.bench", *options.cases, f"--rounds {options.rounds} --seconds {options.seconds:g}"]
    return " ".join([*words, "--server ..."] if options.server else words)


def measure(plan: Plan, names: list[str], say: Console) -> tuple[dict[str, list[Figure]], dict[str, str]]:
    """The figures of each case, and the reasons for failed ones; a failed case does not stop the others."""
    figures: dict[str, list[Figure]] = {}
    failed: dict[str, str] = {}
    with Session(plan) as session:
        for name in names:
            say.print(f"measuring {name}", highlight=False)
            try:
                figures[name] = CASES[name](session)
            except (MeasurementError, ValueError, KeyError, OSError) as error:
                reason = f"{type(error).__name__}: {error}"
                failed[name] = reason.splitlines()[0]  # a child's traceback is for the terminal, not for a page
                say.print(f"{name}: {reason}", style="red", markup=False, highlight=False)
    return figures, failed


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    # SystemExit runs the context managers that stop child processes; the default action of SIGTERM does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console, say = Console(), Console(stderr=True)
    if options.page is not None:
        http_page.PAGE.write(experiment.load(options.page), options.out or DOCS)
        return 0
    if not console.is_terminal:
        console.width = FILE_WIDTH
    plan = Plan(options.rounds, options.seconds, tuple(shlex.split(options.server)), say.print)
    facts = experiment.facts(command(options))
    facts |= {"client": CLIENT, "rounds": f"{plan.rounds} of {plan.seconds:g} s"}
    busy = machine.load_average()
    if busy is not None and busy > machine.cores() / 2:
        say.print(f"[yellow]this machine is busy (load average {busy:.1f}): the figures will show it[/]")
    names = options.cases or list(CASES)
    cases, failed = measure(plan, names, say)
    figures = {name: [figure.to_dict() for figure in found] for name, found in cases.items()}
    report = {"facts": facts, "cases": figures, "failed": failed}
    http_page.show(report, console)
    # An incomplete table, or one from few rounds, must not replace the committed one by default.
    whole = set(names) == set(CASES) and plan.rounds >= LEAST_ROUNDS and not failed and not plan.server
    out = options.out or (DOCS if whole else None)
    if out is not None:
        experiment.store(report, out / "http.json")
        http_page.PAGE.write(experiment.load(out / "http.json"), out)
        say.print("wrote http.json and http.md")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the children have been stopped on the way here
        sys.exit(130)
