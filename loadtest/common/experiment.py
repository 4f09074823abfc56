"""What the commands of all experiments do: run, store the figures as JSON, make the page from the JSON alone.

A page module turns figures into Markdown and plots, and imports nothing that runs servers or simulations. So a page can
be made again from its JSON, after a change of its words, without measuring anything: `--page FILE.json`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from app.bench.run import Lagging
from loadtest.common import machine
from loadtest.common.paths import DOCS
from loadtest.common.servers import MeasurementError

Data = dict[str, Any]

#: What may go wrong in a run and is no fault of the program: a message and status 1, without a traceback.
EXPECTED = (Lagging, MeasurementError, ValueError, OSError)


@dataclass(frozen=True)
class Run:
    """One run of an experiment. `keep` stores figures and their page; a long run may call it before it is over."""

    facts: dict[str, str]
    say: Callable[[str], None]
    keep: Callable[[Data], None]


def _no_options(parser: argparse.ArgumentParser) -> None:
    """The experiment has none of its own."""


def _accept(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """All combinations of the options are possible."""


@dataclass(frozen=True)
class Experiment:
    """A command. `name` is that of the JSON and the page, `text` what `--help` says.

    `measure` returns the figures as values that JSON has; `write` is the page module's: it makes the page and the plots
    of such figures in a folder, and returns their names. `check` may call `parser.error` for options that do not go
    together, and add what follows from them. `missed` says of figures which targets they miss: then the status is 1.
    """

    name: str
    module: str
    text: str | None
    measure: Callable[[argparse.Namespace, Run], Data]
    write: Callable[[Data, Path], list[str]]
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    check: Callable[[argparse.ArgumentParser, argparse.Namespace], None] = _accept
    missed: Callable[[Data], Sequence[str]] = field(default=lambda data: ())
    stored_as: Callable[[argparse.Namespace], str] | None = None  # another name, by the options

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Exits with status 2 where the options cannot be."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.text)
        self.options(parser)
        parser.add_argument("--out", type=Path, default=DOCS, help="folder for the page, JSON and plots [docs/bench]")
        parser.add_argument("--page", type=Path, metavar="FILE.json", help="page of these figures; run nothing")
        chosen = parser.parse_args(list(arguments))
        if chosen.page is None:
            self.check(parser, chosen)
        return chosen

    def main(self, arguments: Sequence[str]) -> int:
        """Run, or make a page again; returns the exit status."""
        chosen = self.parse(arguments)
        console = Console(stderr=True, highlight=False)
        say = clocked(console)
        try:
            if chosen.page is not None:
                data = load(chosen.page)
                tell_written(self.write(data, chosen.out), say)
                return 0
            # A terminated run must stop its children too: SystemExit unwinds what waits for them.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            known = facts(command_of(self.module, arguments))

            path = chosen.out / f"{self.stored_as(chosen) if self.stored_as else self.name}.json"

            def keep(figures: Data) -> None:
                store({**figures, "facts": known}, path)
                # read back, so that the page is made of nothing that the JSON lacks
                tell_written([path.name, *self.write(load(path), chosen.out)], say)

            figures = self.measure(chosen, Run(known, say, keep))
            keep(figures)
        except EXPECTED as error:
            console.print(f"{type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:  # the children have been stopped on the way here
            return 130
        missed = self.missed(load(path))
        for line in missed:
            console.print(line, style="red", markup=False, soft_wrap=True)
        return int(bool(missed))


def clocked(console: Console) -> Callable[[str], None]:
    """Prints lines with the time since now before each."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        passed = int(time.monotonic() - began_s)
        console.print(f"{passed // 60}:{passed % 60:02d} {text}", markup=False, soft_wrap=True)

    return say


def tell_written(names: Sequence[str], say: Callable[[str], None]) -> None:
    for name in names:
        say(f"wrote {name}")


def command_of(module: str, arguments: Sequence[str]) -> str:
    """What to type for the same run, without folders of this machine."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--out")
    kept = parser.parse_known_args(list(arguments))[1]
    return " ".join([f"python -m {module}", *map(shlex.quote, kept)])


def facts(command: str) -> dict[str, str]:
    """Command, date and machine. Call before the work: the load average is that of this moment."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"command": f"`{command}`", "date": date, **machine.describe()}


def store(data: Data, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(_text(data)) + "\n", encoding="utf-8")


def load(path: Path) -> Data:
    """Stored figures. Raises OSError and ValueError for what is no such file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"{path.name}: expected figures that a run stored, got {type(data).__name__}")  # noqa: TRY004
    return data


_NESTED = (dict, list, tuple, np.ndarray)


def _text(value: Any, indent: str = "\n") -> Iterator[str]:
    """JSON with a line for each entry of an object, and one line for a list of plain values."""
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
