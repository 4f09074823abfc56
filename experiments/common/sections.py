"""Experiments in sections, of which a command may measure some."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from loadtest.common.experiment import Data, Experiment, Run, Say, facts, load
from loadtest.common.page import Page
from loadtest.common.paths import DOCS


def in_sections(page: Page, module: str, text: str | None, sections: Mapping[str, Callable[[Say], Data]]) -> Experiment:
    """An experiment whose command may name the sections to measure; figures of the others stay as they are.

    What a section returns is stored under its name, with the facts of its own run.
    """

    def options(parser: argparse.ArgumentParser) -> None:
        parser.epilog = " ".join(f"{name}: {section.__doc__}" for name, section in sections.items())
        parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(sections)} [all, in order]")

    def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
        unknown = [name for name in chosen.sections if name not in sections]
        if unknown:
            parser.error(f"unknown section {', '.join(unknown)}; there are {', '.join(sections)}")

    def measure(chosen: argparse.Namespace, run: Run) -> Data:
        path = chosen.out / f"{page.name}.json"
        known = load(path if path.exists() else DOCS / path.name)
        for name in chosen.sections or sections:
            own = facts("")
            del own["command"]  # a section has no command of its own
            known[name] = {"facts": own, **sections[name](run.say)}
            run.keep(known)
        return known

    return Experiment(page, module, text, measure, options, check)
