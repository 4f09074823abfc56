"""What a request costs in another checkout and in this one: `python -m experiments.costs.cost CHECKOUT`.

CPU time in process, as `experiments.costs.in_process` measures it, of `echo` and of bodies as large as those of `mlp`.
Both checkouts run as child processes that take turns of some tens of milliseconds: one measures while the other waits,
so that a machine which drifts changes both. Shown are the least of each, which other load disturbs least, and the
median ratio of neighbouring turns with its quartiles. The benchmark is this checkout's in both; `app` is their own.
`--trace RATIO` has this one trace its calls; with `.` as the other checkout that is what tracing costs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.costs.in_process import INPUTS
from loadtest.common.paths import ROOT
from loadtest.common.servers import MeasurementError, clean_environment

BEFORE, AFTER = "before", "after"


class Compared(NamedTuple):
    """CPU microseconds of a request: the least of each checkout, and the ratio of neighbouring turns."""

    before: float
    after: float
    ratio: float
    low: float
    high: float

    @property
    def least(self) -> float:
        """Ratio of the least."""
        return self.after / self.before


def compare(before: Sequence[float], after: Sequence[float]) -> Compared:
    ratios = np.array(after) / np.array(before)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return Compared(min(before), min(after), float(middle), float(low), float(high))


class Build:
    """A checkout's `app` under this checkout's benchmark, in a process that measures when it is asked."""

    def __init__(self, checkout: Path, folder: Path, model: str, turns: int, *more: str) -> None:
        if not (checkout / "app" / "engine").is_dir():
            raise MeasurementError(f"checkout: expected a folder with app/engine, got {checkout.name}")
        folder.mkdir()
        for name, target in (("app", checkout / "app"), ("loadtest", ROOT / "loadtest")):
            (folder / name).symlink_to(target.resolve(), target_is_directory=True)
        self._log = tempfile.TemporaryFile("w+", prefix="starling-bench-")  # noqa: SIM115  closed in close
        options = ["--asked", "--model", model, "--turns", str(turns), *more]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "experiments.costs.in_process", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=folder,
            env=clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        self.forms = self._line().split()

    def us(self, form: str) -> float:
        """CPU microseconds of a request of this form, over one turn. Raises MeasurementError."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{form}\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise MeasurementError(f"the benchmark ended: {self._log.read()[-500:].strip()}")
        return line

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()
        self._log.close()


def measure(checkout: Path, model: str, rounds: int, turns: int, trace: float | None = None) -> dict[str, Compared]:
    """By form of request. With `trace` this checkout traces, and what its other thread does counts in both."""
    both = ("--threads",) if trace is not None else ()
    own = {BEFORE: both, AFTER: (*both, "--trace", str(trace)) if trace is not None else both}
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as name, ExitStack() as stack:
        builds = {}
        for side, path in ((BEFORE, checkout), (AFTER, ROOT)):
            builds[side] = Build(path, Path(name) / side, model, turns, *own[side])
            stack.callback(builds[side].close)
        found: dict[str, dict[str, list[float]]] = {form: {BEFORE: [], AFTER: []} for form in builds[AFTER].forms}
        for number in range(rounds):
            for form, sides in found.items():
                for side in (BEFORE, AFTER) if number % 2 else (AFTER, BEFORE):
                    sides[side].append(builds[side].us(form))
    return {form: compare(sides[BEFORE], sides[AFTER]) for form, sides in found.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs.cost", description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder of the other checkout, for example a git worktree")
    parser.add_argument("--rounds", type=int, default=100, help="turns of each checkout and form [100]")
    parser.add_argument("--turns", type=int, default=20, help="requests on each of 64 connections, a turn [20]")
    parser.add_argument("--model", choices=tuple(INPUTS), action="append", help="can be repeated [all]")
    parser.add_argument("--trace", type=float, metavar="RATIO", help="this checkout traces this part of its calls")
    chosen = parser.parse_args(arguments)
    print(f"{'':16}{'before, us':>12}{'after, us':>12}{'least':>9}{'median':>9}   quartiles")
    for model in chosen.model or INPUTS:
        try:
            found = measure(chosen.checkout, model, chosen.rounds, chosen.turns, chosen.trace)
        except MeasurementError as error:
            print(error, file=sys.stderr)
            return 1
        for form, one in found.items():
            print(
                f"{model + ', ' + form:16}{one.before:12.2f}{one.after:12.2f}{one.least:9.3f}{one.ratio:9.3f}   "
                f"{one.low:.3f} to {one.high:.3f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
