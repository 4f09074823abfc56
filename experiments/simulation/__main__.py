"""The simulator's figures, into docs/bench/simulation.md: `python -m experiments.simulation [SECTION ...]`.

About 15 minutes in full, most of it for `fleet`. A section that is made again replaces the earlier one.
"""

from __future__ import annotations

import argparse
import sys

from experiments.simulation import page
from experiments.simulation.sections import SECTIONS
from loadtest.common import experiment
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.paths import DOCS


def options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = " ".join(f"{name}: {section.__doc__}" for name, section in SECTIONS.items())
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)} [all, in this order]")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    unknown = [name for name in chosen.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    """The sections asked for, beside those that were made before."""
    path = chosen.out / "simulation.json"
    known = experiment.load(path if path.exists() else DOCS / path.name)
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in chosen.sections or SECTIONS:
        facts = experiment.facts(f"python -m experiments.simulation {name}")
        del facts["command"]  # the page has it beside them
        known[name] = {"facts": facts, **SECTIONS[name](chosen.out, run.say)}
        known = {section: known[section] for section in SECTIONS if section in known}
        run.keep(known)
    return known


EXPERIMENT = Experiment(page.PAGE, "experiments.simulation", __doc__, measure, options, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
