"""What every experiment's command does: run, store the figures as JSON, and make tables and plots from the JSON alone.

Figures go into docs/bench, tables and plots into out/bench: `--page FILE.json` makes these again and measures nothing.
Pages in docs/ quote them, which a test holds. See page.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.common import machine
from loadtest.common.page import Data, Page
from loadtest.common.paths import DOCS, TABLES
from loadtest.common.servers import MeasurementError
from loadtest.generator.run import Lagging

#: Errors of a run that are no fault of the program: they give a message and status 1, no traceback.
EXPECTED = (Lagging, MeasurementError, ValueError, OSError)

Say = Callable[[str], None]  # prints a line on the progress of a run


@dataclass(frozen=True)
class Run:
    """One run of an experiment. `keep` stores figures and makes their page; long runs call it before they end."""

    facts: dict[str, str]
    say: Say
    keep: Callable[[Data], None]


@dataclass(frozen=True)
class Experiment:
    """The command of an experiment: its page, its module, and the text that `--help` shows.

    `measure` returns the figures as plain JSON values. `check` may reject options with `parser.error` and add derived
    ones. Targets that the figures miss make the exit status 1.
    """

    page: Page
    module: str
    text: str | None
    measure: Callable[[argparse.Namespace, Run], Data]
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    check: Callable[[argparse.ArgumentParser, argparse.Namespace], None] = lambda parser, chosen: None

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the options. Exits with status 2 if they are invalid."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.text)
        self.options(parser)
        parser.add_argument("--out", type=Path, default=DOCS, help="folder of figures [docs/bench], and then of tables")
        parser.add_argument("--page", type=Path, metavar="FILE.json", help="page of these figures; run nothing")
        chosen = parser.parse_args(list(arguments))
        if chosen.page is None:
            self.check(parser, chosen)
        return chosen

    def main(self, arguments: Sequence[str]) -> int:
        """Run the experiment, or only make its page; returns the exit status."""
        chosen = self.parse(arguments)
        console = Console(stderr=True, highlight=False)
        say = clocked(console)
        shown = TABLES if chosen.out == DOCS else chosen.out
        try:
            if chosen.page is not None:
                self.page.write(load(chosen.page), shown)
                return 0
            # SystemExit runs the `finally` blocks that stop child processes; the default action of SIGTERM does not.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            known = facts(command_of(self.module, arguments))
            path = chosen.out / f"{self.page.name}.json"

            def keep(figures: Data) -> None:
                store({**figures, "facts": known}, path)
                # read back, so that the page cannot use anything that the JSON lacks
                self.page.write(load(path), shown)
                say(f"wrote {path} and {shown / path.stem}.md")

            figures = self.measure(chosen, Run(known, say, keep))
            keep(figures)
        except EXPECTED as error:
            console.print(f"{type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:  # the children have been stopped on the way here
            return 130
        missed = self.page.missed(load(path))
        for line in missed:
            console.print(line, style="red", markup=False, soft_wrap=True)
        return int(bool(missed))


def clocked(console: Console) -> Say:
    """A function that prints lines, each after the time that has passed since now."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        passed = int(time.monotonic() - began_s)
        console.print(f"{passed // 60}:{passed % 60:02d} {text}", markup=False, soft_wrap=True)

    return say


def command_of(module: str, arguments: Sequence[str]) -> str:
    """The command line of the same run, without paths of this machine: of a file only its name is kept."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--out")
    kept = parser.parse_known_args(list(arguments))[1]
    named = (re.sub("^((?:--[^=]*=)?)/.*/", r"\1", word) for word in kept)
    return " ".join([f"python -m {module}", *map(shlex.quote, named)])


def facts(command: str) -> dict[str, str]:
    """Command, date and machine. Call it before measuring, because it reads the load average."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"command": f"`{command}`", "date": date, **machine.describe()}


def store(data: Data, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(_text(data)) + "\n", encoding="utf-8")


def load(path: Path) -> Data:
    """Read stored figures. Raises OSError and ValueError if the file holds none."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"{path.name}: expected figures that a run stored, got {type(data).__name__}")  # noqa: TRY004
    return data


_NESTED = (dict, list, tuple, np.ndarray)


def _text(value: Any, indent: str = "\n") -> Iterator[str]:
    """JSON with one line for each entry of an object and one line for a whole list of plain values."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    inner = indent + " "
    if isinstance(value, dict) and value:
        for number, (key, entry) in enumerate(value.items()):
            yield f"{',' if number else '{'}{inner}{json.dumps(str(key), ensure_ascii=False)}: "
            yield from _text(entry, inner)
        yield indent + "}"
    elif isinstance(value, list | tuple) and any(isinstance(entry, _NESTED) for entry in value):
        for number, entry in enumerate(value):
            yield f"{',' if number else '['}{inner}"
            yield from _text(entry, inner)
        yield indent + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
