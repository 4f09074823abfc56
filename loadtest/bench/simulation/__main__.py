"""`python -m loadtest.bench.simulation [SECTION ...]`: the simulator's figures, into docs/bench/simulation.md."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
from pathlib import Path

from rich.console import Console

from .. import machine
from ..load import ROOT
from .section import keep
from .sections import SECTIONS

DOCS = ROOT / "docs" / "bench"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.simulation",
        description="Make the simulator's figures: tables and plots. About 15 minutes in full, most of it for fleet.",
        epilog=" ".join(f"{name}: {section.__doc__}" for name, section in SECTIONS.items()),
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)} [all, in this order]")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for simulation.md, .json and plots [docs/bench]")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    # A terminated run must stop its child too: SystemExit unwinds what waits for it, the default action does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(stderr=True, highlight=False)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.sections or SECTIONS:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        facts = {"date": date, **machine.describe()}
        section = SECTIONS[name](options.out, console.print)
        section.facts = facts
        keep(section, options.out, tuple(SECTIONS))
        console.print(section.markdown(), markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the child has been stopped on the way here
        sys.exit(130)
