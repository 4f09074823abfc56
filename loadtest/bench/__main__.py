"""What serving costs against the least that could do the same: `make bench`, `python -m loadtest.bench [CASE ...]`.

About eight minutes in full. Writes docs/bench/http.json, or out/bench for a run of some cases, of few rounds or
of another server.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from app.machine import cpu_cores
from loadtest.bench.cases import CASES
from loadtest.bench.session import CLIENT, Plan, Session
from loadtest.common import machine
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, lines_table
from loadtest.common.paths import DOCS, ROOT
from loadtest.common.servers import MeasurementError

MAX_ROUNDS, MAX_SECONDS = 100, 60.0
LEAST_ROUNDS = 5  # of a run that replaces the committed page
HEADINGS = ("what", "median", "min – max", "target", "met", "note")

Figure = Mapping[str, Any]  # see figures.py


def options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = " ".join(f"{name}: {(case.__doc__ or '').strip()}" for name, case in CASES.items())
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} [all, in this order]")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each server [5]")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement [3]")
    parser.add_argument("--server", default="", help="command of the server to measure, such as another build's")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    unknown = [name for name in chosen.cases if name not in CASES]
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if not (1 <= chosen.rounds <= MAX_ROUNDS and 0 < chosen.seconds <= MAX_SECONDS):
        parser.error(f"expected 1 to {MAX_ROUNDS} rounds of at most {MAX_SECONDS:g} seconds")
    # An incomplete table, or one from few rounds, must not replace the committed one by default.
    whole = not chosen.cases and chosen.rounds >= LEAST_ROUNDS and not chosen.server
    if chosen.out == DOCS and not whole:
        chosen.out = ROOT / "out" / "bench"


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    """The figures of each case, and the reasons for failed ones; a failed case does not stop the others."""
    plan = Plan(chosen.rounds, chosen.seconds, tuple(shlex.split(chosen.server)), run.say)
    run.facts.update({"client": CLIENT, "rounds": f"{plan.rounds} of {plan.seconds:g} s"})
    busy = machine.load_average()
    if busy is not None and busy > cpu_cores() / 2:
        run.say(f"this machine is busy (load average {busy:.1f}): the figures will show it")
    found: Data = {"cases": {}, "failed": {}}
    with Session(plan) as session:
        for name in chosen.cases or CASES:
            run.say(f"measuring {name}")
            try:
                found["cases"][name] = [figure.to_dict() for figure in CASES[name](session)]
                print(lines_table(HEADINGS, map(cells, found["cases"][name])), flush=True)
            except (MeasurementError, ValueError, KeyError, OSError) as error:
                reason = f"{type(error).__name__}: {error}"
                found["failed"][name] = reason.splitlines()[0]  # a child's traceback is for the terminal alone
                run.say(f"{name}: {reason}")
    return found


def number(value: float) -> str:
    """At least three significant digits, with thousands separators."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def middle(figure: Figure) -> str:
    unit = "" if figure["unit"] == "ratio" else f" {figure['unit']}"
    return f"{number(median(figure['rounds']))}{unit}"


def target(figure: Figure) -> str:
    wanted = figure["target"]
    if wanted is None:
        return ""
    aim = "" if wanted["aim"] is None else f", aim {wanted['aim']:g}"
    return f"{'at most' if wanted['at_most'] else 'at least'} {wanted['bound']:g}{aim}"


def met(figure: Figure) -> str:
    """Whether the target is met, and the aim; empty without a target."""
    wanted = figure["target"]
    if wanted is None:
        return ""
    if not figure["met"]:
        return "NO"
    return "yes, and the aim" if wanted["aim"] is not None and median(figure["rounds"]) >= wanted["aim"] else "yes"


def cells(figure: Figure) -> list[str]:
    """The line of a figure, for both."""
    rounds = figure["rounds"]
    ends = f"{number(min(rounds))} – {number(max(rounds))}"
    return [figure["what"], middle(figure), ends, target(figure), met(figure), figure["note"]]


def missed(data: Data) -> list[str]:
    return [f"{name} could not be measured: {reason}" for name, reason in data["failed"].items()]


def draw(data: Data, folder: Path) -> None:
    """The ratios of rates."""
    from loadtest.common.plots import ranked

    figures = [
        one for case in data["cases"].values() for one in case if "against" in one["what"] and one["unit"] == "ratio"
    ]
    kept = [one for one in figures if median(one["rounds"]) <= 1]
    values = [median(one["rounds"]) for one in kept]
    ranked([one["what"] for one in kept], values, "share of the least that could do it", folder / "http.png")


PAGE = Page("http", __name__, missed, draw)
EXPERIMENT = Experiment(PAGE, "loadtest.bench", __doc__, measure, options, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
